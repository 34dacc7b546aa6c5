"""Finds the cluster that is here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from detslurm.slurm.errors import SlurmError
from detslurm.slurm.interface import Cluster


def detect_cluster(name: str = "auto", *, root: Path | str | None = None) -> Cluster:
    """The cluster of that name; "auto" is Slurm where it is set up, else this machine itself, which
    has a queue for each store: that of `root`.

    Raises `SlurmError` where "auto" would use a machine of a Slurm cluster behind its back.
    """
    if name == "slurm" or (name == "auto" and slurm_is_here()):
        from detslurm.slurm.cluster import SlurmCluster

        return SlurmCluster()
    if name == "auto" and (sign := sign_of_slurm()):
        raise SlurmError(
            f"this machine belongs to a Slurm cluster ({sign}), but sbatch is not in PATH",
            "Load Slurm's module; `--cluster local` runs on this very machine, without Slurm.",
        )
    if name in ("local", "auto"):
        from detslurm.slurm.local import LocalCluster

        assert root is not None, "a local cluster is that of a store"
        return LocalCluster(root)
    raise SlurmError(f"no cluster is called {name!r}", "Use auto, slurm or local.")


# Where packages and those who build it themselves leave Slurm's configuration.
_CONFIGURATIONS = (
    "/etc/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
)
_DAEMONS = frozenset({b"slurmctld", b"slurmd", b"sackd", b"slurmstepd"})


def sign_of_slurm() -> str | None:
    """The evidence of a Slurm here, where its commands are not in PATH."""
    from shutil import which

    if which("sbatch"):
        return None
    return _configuration() or next((f"{name} runs here" for name in _daemons()), None)


def _configuration() -> str | None:
    """A configuration that is there: SLURM_CONF's file, else a file in a usual place."""
    named = os.environ.get("SLURM_CONF")
    return next(filter(_exists, (*([named] if named else ()), *_CONFIGURATIONS)), None)


def _exists(path: str) -> bool:
    # Path.exists() raises for a path that can't be examined, such as in a folder closed to us.
    return os.path.exists(path)  # noqa: PTH110


def _daemons(proc: Path = Path("/proc")) -> Iterator[str]:
    for entry in proc.glob("[0-9]*/comm"):
        try:
            name = entry.read_bytes().strip()  # any process may give itself any bytes as its name
        except OSError:
            continue  # it has ended
        if name in _DAEMONS:
            yield name.decode()


def slurm_is_here() -> bool:
    """True when sbatch exists and a configuration can be found, or else a controller."""
    from shutil import which  # only here: a runner knows its cluster, and starts without this

    if not which("sbatch"):
        return False
    if _configuration() is not None:
        return True
    if os.environ.get("SLURM_CONF"):
        return False  # scontrol would wait for that file, a minute
    from detslurm.slurm import command

    # Configless sites and those built with another prefix: only Slurm itself knows. A controller
    # that is busy or down is there all the same.
    done = command.call(["scontrol", "show", "config"])
    return done.returncode == 0 or command.is_transient(done.stderr)
