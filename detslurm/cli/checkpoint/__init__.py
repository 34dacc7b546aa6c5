"""`detslurm checkpoint`."""
