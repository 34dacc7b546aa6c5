"""`detslurm trial`."""
