"""`detslurm experiment`."""
