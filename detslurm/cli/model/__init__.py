"""`detslurm model`."""
