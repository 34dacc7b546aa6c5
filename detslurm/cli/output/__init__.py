"""The output of commands: results, tables, progress, and figures as people read them."""
