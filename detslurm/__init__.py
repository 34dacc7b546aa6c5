"""Experiments, hyperparameter search and preemptible training on Slurm, with no server."""

# Without `from __future__ import annotations`, which Python 3.6 would refuse before it reads on.
import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036 (a container's image may have an older Python)
    raise ImportError(
        "detslurm needs Python 3.11 or later, and {} is Python {}.{}".format(
            sys.executable, *sys.version_info[:2]
        )
    )

from typing import TYPE_CHECKING, Any

from detslurm._base import contract

if contract.EXPERIMENT_DIR in os.environ:  # before the other imports, which it is for
    from detslurm._base import cached_modules

    cached_modules.share(os.environ[contract.EXPERIMENT_DIR])

from detslurm.errors import InvalidHP

__version__ = "0.1.0"

LOG_FORMAT = "%(levelname)s: [%(process)s] %(name)s: %(message)s"
"""For `logging.basicConfig(format=...)`."""

if contract.LIBRARIES in os.environ:  # last, so that what an image has itself counts
    sys.path.append(f"{os.environ[contract.LIBRARIES]}/{sys.implementation.cache_tag}")
elif (_place := __file__.rpartition("/detslurm/")[0]).endswith(contract.CENTRAL_LIBRARY):
    sys.path.append(f"{_place}/{sys.implementation.cache_tag}")

__all__ = [
    "LOG_FORMAT",
    "ClusterInfo",
    "InvalidHP",
    "RendezvousInfo",
    "ResourcesInfo",
    "TrialInfo",
    "__version__",
    "core",
    "errors",
    "experimental",
    "get_cluster_info",
    "import_from_path",
    "join_job",
]

if TYPE_CHECKING:
    from detslurm import core, errors, experimental
    from detslurm._base.importing import import_from_path
    from detslurm._base.info import (
        ClusterInfo,
        RendezvousInfo,
        ResourcesInfo,
        TrialInfo,
        get_cluster_info,
    )
    from detslurm.core._unmanaged_job import join_job

_FROM_INFO = ("ClusterInfo", "RendezvousInfo", "ResourcesInfo", "TrialInfo", "get_cluster_info")


def __getattr__(name: str) -> Any:
    # Loaded on first use: the command line and the node agents import this package thousands of
    # times on a shared file system and need none of it.
    if name in _FROM_INFO:
        from detslurm._base import info

        return getattr(info, name)
    if name == "import_from_path":
        from detslurm._base.importing import import_from_path

        return import_from_path
    if name == "join_job":
        from detslurm.core._unmanaged_job import join_job

        return join_job
    if name in ("core", "errors", "experimental"):
        import importlib

        return importlib.import_module(f"detslurm.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
