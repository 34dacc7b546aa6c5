"""Which processes of earlier runs are ended before a run begins, and which are left alone."""

from __future__ import annotations

import errno
import fcntl
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from detslurm._base import child_processes as processes
from detslurm._base.flag import PreemptFlag
from detslurm.exec import orphans
from detslurm.exec.orphans import RunMark, end_orphans, is_orphan
from tests.cluster.processes import started

OWN = RunMark("/store/experiments/7", trial=3, run=2, job="11")
IN_JOB = {"DETSLURM_JOB": "11", "SLURM_JOB_ID": "11"}


def environment(trial: int = 3, run: int = 1, experiment: int = 7, **more: str) -> dict[str, str]:
    place = f"/store/experiments/{experiment}"
    ids = {"DET_TRIAL_ID": str(trial), "DET_TRIAL_RUN_ID": str(run)}
    return {"DETSLURM_EXPERIMENT_DIR": place, **ids, **IN_JOB, **more}


LEFT_OVER: list[Mapping[str, str]] = [
    environment(),
    environment(DETSLURM_JOB="4", SLURM_JOB_ID="4"),  # of the trial's job before
    environment(trial=2, run=5),  # the trial that this job had before
]
OTHERS: list[Mapping[str, str]] = [
    {},
    environment(run=2),  # our own
    environment(run=3),  # who comes after us
    environment(trial=9),  # not known to be over
    environment(trial=2, DETSLURM_JOB="4", SLURM_JOB_ID="4"),
    environment(experiment=8),
    environment(SLURM_JOB_ID="12"),  # a job that run 1 has submitted
    environment(DETSLURM_LOCAL_JOB_ID="1"),
    environment(DET_TRIAL_ID="?"),
]


def is_over(trial: int, run: int) -> bool:
    return trial == 2


def is_ended(env: Mapping[str, str]) -> bool:
    mark = RunMark.of(env)
    return mark is not None and is_orphan(mark, OWN, is_over)


def test_by_their_marks() -> None:
    """Only what is known to work for a run that is over."""
    assert all(map(is_ended, LEFT_OVER))
    assert not any(map(is_ended, OTHERS))


def sleeping(env: Mapping[str, str]) -> AbstractContextManager[subprocess.Popen[str]]:
    return started(["/bin/sleep", "600"], env=env, start_new_session=True)


def test_they_are_ended(tmp_path: Path) -> None:
    """Before the call returns; and nobody else."""
    own = OWN._replace(experiment=f"{tmp_path}")
    marked = environment() | {"DETSLURM_EXPERIMENT_DIR": own.experiment}
    with sleeping(marked) as old, sleeping({**marked, "DET_TRIAL_RUN_ID": "2"}) as new:
        assert end_orphans(own, is_over) == (1, 0)
        assert old.wait(0) == -9
        assert new.poll() is None


def test_one_that_takes_its_time_to_die(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment is gone at once, and what it holds is not."""
    with sleeping({}) as old:
        looks = iter([[old.pid]])
        kills = []

        def signal_each(pids: Sequence[int], sig: signal.Signals) -> None:
            kills.append(sig)
            if len(kills) == 3:
                processes.signal_each(pids, sig)

        monkeypatch.setattr(orphans, "_orphans", lambda own, is_over: next(looks, []))
        monkeypatch.setattr(orphans, "signal_each", signal_each)
        assert end_orphans(OWN, is_over) == (1, 0)
        assert len(kills) >= 3
        assert old.wait(0) == -9


OWNER = """
import time
from detslurm._base.flag import PreemptFlag
flag = PreemptFlag.create()
print(flag.name, flush=True)
time.sleep(600)
"""
RANK = """
import sys, time
from detslurm._base.flag import PreemptFlag
from detslurm.core._preempt import end_with_agent
end_with_agent(PreemptFlag.attach(sys.argv[1]))
print("ready", flush=True)
time.sleep(600)
"""


def test_a_process_whose_agent_is_gone_ends() -> None:
    """At once, whatever it does meanwhile, and without having to look."""
    argv = [sys.executable, "-c"]
    with started([*argv, OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        name = owner.stdout.readline().strip()
        with started([*argv, RANK, name], stdout=subprocess.PIPE) as rank:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
            assert rank.poll() is None
            owner.kill()
            assert rank.wait(60) == 137


def test_an_owner_that_can_not_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no lock can be had, nobody takes it for dead."""

    def refused(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    flag = PreemptFlag.create()
    monkeypatch.undo()
    assert not PreemptFlag.attach(flag.name).outlive_owner()
