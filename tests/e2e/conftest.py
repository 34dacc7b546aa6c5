"""Fixtures of the tests through the front door."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from tests.cluster import User, has_pmix
from tests.containers import (
    apptainer,
    charliecloud,
    image,
    newer_image,
    newer_podman_image,
    podman,
    podman_image,
    sif_image,
)
from tests.e2e.desk import EXAMPLES, Desk

__all__ = [
    "apptainer",
    "charliecloud",
    "image",
    "newer_image",
    "newer_podman_image",
    "podman",
    "podman_image",
    "sif_image",
]

pytestmark = pytest.mark.cluster


def _why_no_mpi() -> str:
    if importlib.util.find_spec("mpi4py") is None:
        return "no MPI: mpi4py is not installed"
    return "" if has_pmix() else "no MPI ranks by srun: this Slurm has no pmix plugin"


needs_mpi = pytest.mark.skipif(bool(_why_no_mpi()), reason=_why_no_mpi())
"""For tests whose ranks srun starts."""


@pytest.fixture
def desk(alice: User) -> Desk:
    """An ordinary user of the suite's cluster, at work."""
    return Desk(alice)


@pytest.fixture
def digits(desk: Desk) -> Path:
    """The digits example, copied to the user's directory; its configuration."""
    return copy_example(desk, "digits") / "experiment.yaml"


def copy_example(desk: Desk, name: str) -> Path:
    assert desk.user.cwd is not None
    target = desk.user.cwd / name
    shutil.copytree(EXAMPLES / name, target)
    desk.user.own(target)
    return target
