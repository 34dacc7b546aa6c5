"""Data of the package: batch scripts to start from (`batch/`), site profiles (`sites/`)."""
