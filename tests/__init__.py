"""The suite of detslurm."""
