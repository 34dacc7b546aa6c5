"""`detslurm top`: the store and the queue on a terminal, for as long as it is open."""
