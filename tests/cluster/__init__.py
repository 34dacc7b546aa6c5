"""A real Slurm cluster for the suite, from nothing: munged, slurmctld, slurmdbd, several slurmd.

By hand: `python -m tests.cluster --help`, or `make cluster`.
"""

from tests.cluster.cluster import Cluster
from tests.cluster.daemons import StartError, has_pmix, missing_programs
from tests.cluster.spec import ClusterSpec
from tests.cluster.users import User
from tests.cluster.waiting import wait_for
from tests.cluster.watchdog import guarded

__all__ = [
    "Cluster",
    "ClusterSpec",
    "StartError",
    "User",
    "guarded",
    "has_pmix",
    "missing_programs",
    "wait_for",
]
