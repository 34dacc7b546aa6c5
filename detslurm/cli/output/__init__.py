"""What commands print: results, tables, progress, and figures as people read them."""
