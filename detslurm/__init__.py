"""Experiments, hyperparameter search and preemptible training on Slurm, with no server."""

__version__ = "0.1.0"
