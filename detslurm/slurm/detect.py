"""Which cluster is here."""

from __future__ import annotations

import os
from pathlib import Path

from detslurm.slurm.interface import Cluster, SlurmError


def detect_cluster(name: str = "auto", *, root: Path | str | None = None) -> Cluster:
    """The cluster of that name; "auto" is Slurm where it is set up, else this machine itself."""
    if name == "slurm" or (name == "auto" and slurm_is_here()):
        from detslurm.slurm.cluster import SlurmCluster

        return SlurmCluster()
    if name in ("local", "auto"):
        from detslurm.slurm.local import LocalCluster

        return LocalCluster(root)
    raise SlurmError(f"no cluster is called {name!r}", "Use auto, slurm or local.")


def slurm_is_here() -> bool:
    """True when sbatch exists and a configuration can be found; asks no controller by itself."""
    from shutil import which  # only here: a runner knows its cluster, and starts without this

    if not which("sbatch"):
        return False
    conf = os.environ.get("SLURM_CONF")
    if conf:
        return Path(conf).exists()
    if any(Path(path).exists() for path in ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")):
        return True
    from detslurm.slurm import command

    # Configless sites and those built with another prefix: only Slurm itself knows.
    return command.call(["scontrol", "show", "config"]).returncode == 0
