"""Site profiles made from what a cluster tells about itself."""

from __future__ import annotations


def profile_text() -> str:
    """YAML of a profile that fits the Slurm of this machine. Raises SlurmError."""
    from detslurm.slurm.cluster import SlurmCluster
    from detslurm.slurm.mpi import mpi_types
    from detslurm.slurm.site import site_profile_from

    return site_profile_from(SlurmCluster().limits(), mpi_types())
