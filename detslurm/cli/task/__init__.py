"""`detslurm cmd`, `shell`, `notebook`: tasks."""
