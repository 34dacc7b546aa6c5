"""Both clusters behind one fixture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from detslurm.slurm import Cluster, LocalCluster, SlurmCluster
from tests.slurm.bench import Bench
from tests.slurm.schedulers import end_scheduler


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A local cluster with 4 declared CPUs and 2 declared GPUs, ended with the test."""
    monkeypatch.setenv("DETSLURM_LOCAL_CPUS", "4")
    monkeypatch.setenv("DETSLURM_LOCAL_GPUS", "2")
    cluster = LocalCluster(tmp_path / "store")
    folder = tmp_path / "jobs"
    folder.mkdir()
    yield Bench(cluster, folder)
    end_scheduler(cluster)


@pytest.fixture
def real(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    """The suite's Slurm cluster; its queue is empty before and after."""
    slurm = request.getfixturevalue("slurm")
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    cluster: Cluster = SlurmCluster()
    yield Bench(cluster, tmp_path)
    slurm.cancel_all()


@pytest.fixture(params=["local", pytest.param("real", marks=pytest.mark.cluster)])
def bench(request: pytest.FixtureRequest) -> Bench:
    """One after the other: the local cluster and Slurm."""
    found: Bench = request.getfixturevalue(request.param)
    return found
