"""The embedded local cluster: Slurm's verbs on one machine without Slurm."""

from detslurm.slurm.local.client import LocalCluster

__all__ = ["LocalCluster"]
