"""Data of the package: batch scripts to start from, for those who write their own."""
