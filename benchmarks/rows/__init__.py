"""One module a row, or a few rows that are measured together; each has `measure(bench)`."""
