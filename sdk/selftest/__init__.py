"""`detslurm selftest`: a dozen short jobs that try a cluster, and a table of what they found."""
