"""The site profile that Slurm's own reports suggest."""

from __future__ import annotations


def site_report() -> str:
    """Return a commented profile in YAML, from the limits that Slurm shows."""
    from detslurm.slurm import SlurmCluster, mpi_types, site_profile_from

    return site_profile_from(SlurmCluster().limits(), mpi_types())
