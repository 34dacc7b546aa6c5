"""The site profile that Slurm's own reports suggest."""

from __future__ import annotations

from detslurm.slurm import SlurmCluster, mpi_types, site_profile_from


def site_report() -> str:
    """Return a commented profile in YAML, from the limits that Slurm shows."""
    return site_profile_from(SlurmCluster().limits(), mpi_types())
