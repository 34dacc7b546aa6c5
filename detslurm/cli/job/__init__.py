"""`detslurm job`."""
