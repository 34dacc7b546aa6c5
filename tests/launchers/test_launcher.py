"""What a launcher does around its workers where the store can't be used, or a disk is full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from detslurm._base.contract import EXIT_LOG, INTERFACE, MASTER, TRACK
from detslurm._base.flag import PreemptFlag
from detslurm.exec.unmanaged_claims import JobStep
from detslurm.exec.unmanaged_job import UnmanagedJob
from detslurm.launch import launcher, nodes, torch_distributed
from detslurm.launch.arguments import LauncherArgs
from detslurm.launch.nodes import Nodes
from detslurm.launch.ranks import ExitLog, report_exit
from detslurm.slurm import Allocation
from detslurm.store import StoreError, StoreFault, TrialDir, retry
from tests.sdk.scenes import Scene


@pytest.fixture(autouse=True)
def a_job_of_one_s_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is a job's, and nobody waits."""
    monkeypatch.delenv(MASTER, raising=False)
    monkeypatch.delenv(TRACK, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=lambda seconds: None))
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def launch(*, raises: Exception | None = None) -> tuple[int, list[Nodes]]:
    """The status of a launcher whose workers end well, and where they ran."""
    ran: list[Nodes] = []

    def run(args: LauncherArgs, here: Nodes, flag: PreemptFlag | None) -> int:
        ran.append(here)
        if raises is not None:
            raise raises
        return 0

    return launcher.launch(["train.py"], run, usage=None), ran


def unmanaged(folder: Path) -> UnmanagedJob:
    """The run of this job, as its chief has opened it."""
    trial = Scene(folder).experiment().trial(1)
    start = trial.open_run({"job": {"nodes": ["n1"]}})
    step = JobStep(Allocation(cluster="slurm", job_id="7", nodes=("n1",)), "0", ["train.py"])
    job = UnmanagedJob(trial, start, step, PreemptFlag.create())
    job.is_chief = True
    return job


@pytest.mark.parametrize("error", [StoreError("no hard links"), PermissionError("read-only")])
def test_without_a_store_one_node_trains_and_says_that_it_is_not_recorded(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On all its GPUs; several nodes can't meet, and must not train each by itself."""

    def join(argv: list[str], *, launcher: bool) -> None:
        raise error

    monkeypatch.setattr(nodes, "join", join)
    assert launch() == (0, [Nodes(("127.0.0.1",), 0, 2)])
    assert f"not recorded: {error}" in capsys.readouterr().err
    assert os.environ[TRACK] == "0"
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    assert launch() == (1, [])
    assert f"{error}, and without its record 2 nodes can't meet" in capsys.readouterr().err


def test_what_ends_a_launcher_is_in_the_end_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong after the run was opened."""
    job = unmanaged(tmp_path / "store")
    monkeypatch.setattr(launcher, "join_run", lambda argv: job)
    monkeypatch.setattr(launcher, "nodes_here", lambda: Nodes(("127.0.0.1",), 0, 1))
    assert launch(raises=OSError("no processes left"))[0] == 1
    end = job._trial.end(1)
    assert end is not None
    assert (end.outcome, end.reason) == ("error", "no processes left")


def test_a_full_store_does_not_make_a_finished_training_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end is not recorded, and the launcher says so."""

    def full(self: TrialDir, run: int, record: object) -> bool:
        raise StoreFault("no space left", 28, "/store")

    job = unmanaged(tmp_path / "store")
    monkeypatch.setattr(launcher, "join_run", lambda argv: job)
    monkeypatch.setattr(launcher, "nodes_here", lambda: Nodes(("127.0.0.1",), 0, 1))
    monkeypatch.setattr(TrialDir, "write_end", full)
    assert launch()[0] == 0
    assert "not recorded: no space left" in capsys.readouterr().err


def test_a_full_disk_does_not_make_a_finished_worker_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit is not reported; one that was written in part does not count."""
    monkeypatch.setenv(EXIT_LOG, "/dev/full")
    report_exit(0, 0)
    exits = ExitLog()
    Path(exits.name).write_bytes(b"0 0\n1 11 7\n3\n2 5\n4 13")
    assert exits.first_failure() == 5


def test_an_interface_matters_only_between_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's choice may not exist where a job of one node runs."""
    monkeypatch.setenv(INTERFACE, "none-such0")
    args = LauncherArgs([], ["train.py"])
    found = torch_distributed.environment(args, Nodes(("127.0.0.1",), 0, 1))
    assert "GLOO_SOCKET_IFNAME" not in found
    with pytest.raises(OSError, match="no network interface none-such0"):
        torch_distributed.environment(args, Nodes(("n1", "n2"), 0, 1))
