"""A run has one writer: contexts of one process share it, other processes are refused."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.context import ForkProcess
from multiprocessing.synchronize import Event

import pytest

from detslurm import core, join_job
from detslurm._base import contract, info
from detslurm.store import read_records

from .jobs import Job


def steps(job: Job) -> list[int]:
    return [r["steps"] for r in read_records(job.trial.records_path(1)).records if "steps" in r]


def test_contexts_that_are_open_at_once_lose_nothing(job: Job) -> None:
    """Nested, or never closed: what each reports is kept, and a save that goes on is left alone."""
    with core.init() as outer:
        outer.train.report_training_metrics(1, {"loss": 1.0})
        with outer.checkpoint.store_path({"steps_completed": 1}) as (path, _):
            with core.init() as inner:
                inner.train.report_training_metrics(2, {"loss": 1.0})
            assert path.exists()
        outer.train.report_training_metrics(3, {"loss": 1.0})
    core.init().train.report_training_metrics(4, {"loss": 1.0})
    with core.init() as last:
        last.train.report_training_metrics(5, {"loss": 1.0})
    assert steps(job) == [1, 2, 1, 3, 4, 5]


@contextmanager
def forked(target: Callable[..., object], *args: object) -> Iterator[ForkProcess]:
    """A child of this process that is killed in the end, also by a test that fails."""
    child = multiprocessing.get_context("fork").Process(target=target, args=args)
    child.start()
    try:
        yield child
    finally:
        child.kill()


INIT = "from detslurm import core\nwith core.init() as c: c.train.report_training_metrics(2, {})"


def test_a_second_process_is_refused_while_the_first_records(job: Job) -> None:
    """It would write over the first one's records; afterwards it may, whatever was forked."""
    with ExitStack() as workers:
        with core.init() as context:
            context.train.report_training_metrics(1, {"loss": 1.0})
            workers.enter_context(forked(time.sleep, 600))
            second = subprocess.run([sys.executable, "-c", INIT], capture_output=True, text=True)
            assert second.returncode == 1
            assert "give core.init() the DistributedContext" in second.stderr
        third = subprocess.run([sys.executable, "-c", INIT], capture_output=True, text=True)
    assert third.returncode == 0, third.stderr
    assert steps(job) == [1, 2]


def test_a_job_from_inside_another_ones_run_is_not_that_run(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch hands the environment on; a step of the same job still belongs to the run."""
    monkeypatch.setenv("DETSLURM_TRACK", "0")
    monkeypatch.setenv(contract.JOB, "7")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert info.get_cluster_info() is not None
    monkeypatch.setattr(info, "_info", None)
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    assert info.get_cluster_info() is None and contract.MASTER in os.environ  # it only reads
    assert join_job() is None
    assert not [name for name in os.environ if name.startswith("DET_")]


def begin_and_wait(begun: Event) -> None:
    begun.set()
    time.sleep(600)


def test_a_pool_that_is_left_while_preempted_ends(job: Job) -> None:
    """Its forked workers are ended by a SIGTERM that is not Slurm's."""
    begun = multiprocessing.get_context("fork").Event()
    with core.init() as context, forked(begin_and_wait, begun) as worker:
        begun.wait()
        job.flag.request_preemption()
        assert context.preempt.should_preempt()
        os.kill(os.getpid(), signal.SIGTERM)  # this one is
        worker.terminate()
        worker.join(60)
        assert worker.exitcode == -signal.SIGTERM


def test_what_sigusr1_meant_before_it_still_means(job: Job) -> None:
    """In a batch script of one's own it may be the word to save and leave."""
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        with core.init():
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1]


def test_the_end_is_said_whatever_fails_before(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers or a profiler that can't be left in order cost no records."""

    def fail() -> None:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"), core.init() as context:
        monkeypatch.setattr(context.distributed, "close", fail)
        monkeypatch.setattr(context.profiler, "close", fail)
        context.train.report_training_metrics(1, {"loss": 1.0})
    assert steps(job) == [1]
