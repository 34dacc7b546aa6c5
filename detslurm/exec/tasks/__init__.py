"""What runs in the jobs of tasks: the servers of shells, notebooks and TensorBoards."""
