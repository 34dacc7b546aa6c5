"""A file server that fails one call and is well again ends no job and uses no restart."""

from __future__ import annotations

import errno
import importlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from detslurm.exec.end_reasons import EndReasons
from detslurm.exec.execution import Execution
from detslurm.exec.outcome import AttemptResult, Cause
from detslurm.exec.runner import Runner, _slurm_output, main
from detslurm.exec.text_log import TextLog
from detslurm.slurm import Allocation, JobRequest, SlurmError
from detslurm.store import ExperimentDir, fold_experiment, fs, retry
from detslurm.store.run_log import RunLog
from tests.sdk.scenes import Scene
from tests.store.faults import CALLS, WRITES, failing


class Hiccup:
    """`os` with one call of the store that fails."""

    calls: tuple[str, ...] = CALLS
    code = errno.EIO

    def __init__(self, at: int) -> None:
        self.left = at

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.calls:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.fails():
                if name == "close":
                    real(*args, **kwargs)
                raise OSError(self.code, os.strerror(self.code))
            return real(*args, **kwargs)

        return call

    def fails(self) -> bool:
        self.left -= 1
        return self.left == 0


class Outage(Hiccup):
    """`os` whose calls fail from some moment on."""

    down = False

    def __init__(self) -> None:
        super().__init__(0)

    def fails(self) -> bool:
        return self.down


class FullQuota(Outage):
    """`os` that writes nothing."""

    calls = WRITES
    code = errno.EDQUOT
    down = True


@contextmanager
def hiccup(at: int) -> Iterator[Callable[[], bool]]:
    """Let the `at`-th call fail; yields whether it came to that."""
    broken = Hiccup(at)
    with mock.patch.object(fs, "os", broken):
        yield lambda: broken.left <= 0


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is a job's, its steps end well at once, and nobody waits."""
    monkeypatch.setenv("DETSLURM_LOCAL_JOB_ID", "7")
    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # most of the time otherwise
    monkeypatch.setattr(Execution, "_attempt", trained)
    monkeypatch.setattr(Runner, "_tidy", lambda runner, *_: None)  # it is let go at any error
    known = {sig: signal.getsignal(sig) for sig in set(signal.Signals) - UNCATCHABLE}
    before = signal.set_wakeup_fd(-1)
    yield
    signal.set_wakeup_fd(before)
    for sig, handler in known.items():
        if handler is not None:
            signal.signal(sig, handler)


UNCATCHABLE = {signal.SIGKILL, signal.SIGSTOP}


def trained(execution: Execution, log: object) -> AttemptResult:
    with mock.patch.object(fs, "os", os):  # the code has troubles of its own
        path = execution._trial.records_path(execution._run)
        with RunLog.open(path) as records:
            records.append({"t": "metrics", "group": "validation", "steps": 1, "metrics": {}})
    return AttemptResult(exit_code=0, began=True)


def outcomes(experiment: ExperimentDir) -> list[str]:
    ids = [row.id for row in fold_experiment(experiment).trials]
    return [run.outcome for n in ids for run in experiment.trial(n).runs()]


def test_a_runner_outlives_any_single_error(scene: Scene, job: None) -> None:
    """At its start, between two trials, at the end: each trial has one run, and is completed."""
    for call in range(1, 500):
        experiment = scene.experiment(2)
        with hiccup(call) as happened:
            runner = Runner(experiment.path, 0, 2)
            assert runner.run() == 0, call
        # An inbox is open for as long as a process lives: hundreds leave no number for select().
        os.close(signal.set_wakeup_fd(-1))
        os.close(runner._inbox.fileno())
        assert outcomes(experiment) == ["completed", "completed"], call
        if not happened():
            return
    raise AssertionError("the runner never came to an end")


def test_a_log_that_a_file_server_has_forgotten_is_opened_again(tmp_path: Path) -> None:
    """By its name, and at most once for each write."""
    path = tmp_path / "log"
    log = TextLog(path)
    path.unlink()
    path.touch()
    with failing("write", errno.ESTALE):
        log.write(["found"])
    with failing("write", errno.ESTALE, times=2):
        log.write(["forgotten for longer"])
    log.write(["found again"])
    log.close()
    said = [line.partition(" || ")[2] for line in path.read_text().splitlines()]
    assert said == ["found", f"detslurm: 1 line lost: {os.strerror(errno.ESTALE)}", "found again"]


def test_a_log_says_why_it_lacks_lines(tmp_path: Path) -> None:
    """The first error counts, and the lines that were to be written."""
    log = TextLog(tmp_path / "log")
    for code, lines in {errno.EIO: ["one", "two"], errno.ENOSPC: ["three"]}.items():
        with failing("write", code):
            log.write(lines)
    log.write(["four"])
    log.close()
    said = [line.partition(" || ")[2] for line in (tmp_path / "log").read_text().splitlines()]
    assert said == ["detslurm: 3 lines lost: Input/output error", "four"]


@pytest.fixture
def pauses(job: None, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long a job has waited for the store."""
    found: list[float] = []
    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=found.append))
    return found


def test_a_worker_gives_a_full_quota_its_minutes_once(
    scene: Scene, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes are idle meanwhile."""
    experiment, _ = scene.search()
    scene.queue.put("7", "RUNNING")
    monkeypatch.setattr(Runner, "_cluster", lambda *_: scene.queue)
    with mock.patch.object(fs, "os", FullQuota()):
        assert main([str(experiment.path), "0"]) == 1
    assert pauses == [*retry.LONG]


@pytest.mark.parametrize(
    ("place", "name"), [("detslurm.exec.execution", "claim_run"), (Execution, "_attempt")]
)
def test_a_store_that_stays_away_has_its_minutes_once(
    scene: Scene, pauses: list[float], monkeypatch: pytest.MonkeyPatch, place: Any, name: str
) -> None:
    """Also where several things are to be read of it, and a run is claimed but once."""
    experiment = scene.experiment()
    place = importlib.import_module(place) if isinstance(place, str) else place
    outage, real = Outage(), getattr(place, name)

    def last(*args: Any) -> Any:
        done = real(*args)
        outage.down = True
        return done

    monkeypatch.setattr(place, name, last)
    with mock.patch.object(fs, "os", outage):
        assert main([str(experiment.path), "0"]) == 1
    assert pauses == [*retry.LONG]
    assert len(experiment.trial(experiment.created().first_trial).runs()) == 1


@pytest.mark.parametrize("away", [True, False])
def test_a_preemption_while_the_store_is_away_uses_no_restart(
    scene: Scene, job: None, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """The code fails, because it can't save; with a store at hand that is a failure of its own."""
    outage = Outage()

    def preempted(*_: object) -> AttemptResult:
        outage.down = away
        return AttemptResult(1, cause=Cause.PREEMPTION, began=True, yield_allocation=True)

    def back(seconds: float) -> None:
        outage.down = False

    monkeypatch.setattr(Execution, "_attempt", preempted)
    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=back))
    monkeypatch.setattr(EndReasons, "is_job_ending", lambda _: False)
    monkeypatch.setattr(Runner, "_cluster", lambda *_: scene.queue)
    experiment = scene.experiment()
    with mock.patch.object(fs, "os", outage):
        assert main([str(experiment.path), "0"]) == 0
    assert outcomes(experiment) == ["preempted" if away else "restart"]
    assert [call[0] for call in scene.queue.calls] == ["requeue"]


def test_a_job_asks_for_its_requeue_before_it_collects(
    scene: Scene, job: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm takes the allocation back, and may not wait; the share has another trial."""
    result = AttemptResult(began=True, yield_allocation=True)
    monkeypatch.setattr(Execution, "_attempt", lambda *_: result)
    monkeypatch.setattr(Runner, "_cluster", lambda *_: scene.queue)
    monkeypatch.setattr(Runner, "_tidy", lambda *_: scene.queue.calls.append(("tidy",)))
    experiment = scene.experiment(2)
    assert main([str(experiment.path), "0", "2"]) == 0
    assert outcomes(experiment) == ["completed"]
    assert [call[0] for call in scene.queue.calls] == ["requeue", "tidy"]


@pytest.mark.parametrize("recorded", [True, False])
def test_a_runner_that_gets_no_successor_says_why(
    scene: Scene,
    job: None,
    recorded: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its run's end is recorded: the queue refuses, or a `submit` that was killed has not recorded
    how this job was asked for."""
    result = AttemptResult(
        began=True, cause=Cause.PREEMPTION, acknowledged=True, yield_allocation=True
    )
    monkeypatch.setattr(Execution, "_attempt", lambda *_: result)
    monkeypatch.setattr(Runner, "_cluster", lambda *_: scene.queue)
    scene.queue.down = recorded
    about = {"on_preempt": "successor"}
    experiment = scene.experiment(job="7" if recorded else None, about=about)
    assert main([str(experiment.path), "0"]) == 1
    assert outcomes(experiment) == ["preempted"]
    said = "Unable to contact" if recorded else "how this job was submitted is not recorded"
    assert f"detslurm: no successor could be submitted: {said}" in capfd.readouterr().out


@pytest.mark.parametrize("times", [1, 99])
def test_a_successor_whose_script_can_not_be_written(
    scene: Scene,
    job: None,
    times: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The runner tries again for minutes, and says in one line why there is none."""
    result = AttemptResult(
        began=True, cause=Cause.PREEMPTION, acknowledged=True, yield_allocation=True
    )
    monkeypatch.setattr(Execution, "_attempt", lambda *_: result)
    monkeypatch.setattr(Runner, "_cluster", lambda *_: scene.queue)
    experiment = scene.experiment(job="7", about={"on_preempt": "successor"})
    scene.queue.put("7", "RUNNING")
    real, left = scene.queue.submit, [times]

    def submit(request: JobRequest) -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.EIO, "the script can't be written")
        return real(request)

    monkeypatch.setattr(scene.queue, "submit", submit)
    assert main([str(experiment.path), "0"]) == (times == 99)
    assert outcomes(experiment) == ["preempted"]
    assert len(scene.queue.requests) == (times == 1)
    said = capfd.readouterr().out
    assert ("no successor could be submitted" in said) == (times == 99)
    assert "Traceback" not in said


def test_where_jobs_may_not_submit_a_run_goes_on_on_the_node_that_it_should_leave(
    scene: Scene, job: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own job is requeued: the trial was left without one."""
    here = Allocation.from_environment(os.environ)
    assert here is not None
    result = AttemptResult(1, began=True, exclude=[*here.nodes])
    monkeypatch.setattr(Execution, "_attempt", lambda *_: result)
    monkeypatch.setattr(Runner, "_cluster", lambda *_: scene.queue)

    def refused(request: JobRequest) -> str:
        raise SlurmError("sbatch is disabled on compute nodes")

    monkeypatch.setattr(scene.queue, "submit", refused)
    experiment = scene.experiment()
    assert main([str(experiment.path), "0"]) == 0
    assert outcomes(experiment) == ["restart"]
    assert scene.queue.calls == [("requeue", "7")]


def test_only_an_own_file_tells_why_slurm_ends_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user of the node may have made the file first, by the name that Slurm shows."""
    file = os.open(tmp_path / "output", os.O_RDWR | os.O_CREAT)
    monkeypatch.setattr("detslurm.exec.runner.SLURM_OUTPUT_FD", file)
    assert _slurm_output() == (Path(f"/proc/self/fd/{file}"), 0)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert _slurm_output()[0] == Path("/proc/self/fd/1")
    os.close(file)
