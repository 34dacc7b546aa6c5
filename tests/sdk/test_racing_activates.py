"""Several commands that find the same trials lost: one of them submits, whoever is killed at it."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from detslurm._base.process import Identity
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments import resubmission
from detslurm.slurm import JobInfo, JobRequest, SlurmError
from detslurm.store import ExperimentDir, fold_facts
from detslurm.store.records import Resubmitting
from tests.sdk.scenes import Scene

COMMANDS = 6


def lost(scene: Scene) -> ExperimentDir:
    """Trials 0, 1 and 3 of four have lost their jobs: that takes an array and a single job."""
    experiment = scene.experiment(4, job="7")
    scene.run(experiment, 2, ref="7_2", end="completed")
    for index in range(4):
        scene.queue.put(f"7_{index}", "CANCELLED")
    return experiment


def queued(scene: Scene) -> list[tuple[str, int]]:
    """The first trial and the elements of each job that was submitted."""
    return [(r.command[-1], r.count or 1) for r in scene.queue.requests]


def test_activates_at_once_queue_one_job_for_each_lost_trial(scene: Scene, tmp_path: Path) -> None:
    """All of them have asked the queue before the first of them submits."""
    experiment, submitted = lost(scene), tmp_path / "submitted"
    all_asked = multiprocessing.get_context("fork").Barrier(COMMANDS)

    query = scene.queue.query

    def query_with_others(job_ids: Collection[str]) -> dict[str, JobInfo]:
        found = query(job_ids)
        all_asked.wait(60)
        return found

    def activate() -> None:
        found = scene.client.experiment(1)
        scene.queue.submit = submit  # type: ignore[method-assign]
        scene.queue.query = query_with_others  # type: ignore[method-assign]
        found.activate()

    def submit(request: JobRequest) -> str:
        with submitted.open("a") as file:
            file.write(f"{request.command[-1]}:{request.count or 1}\n")
        return f"{os.getpid()}{request.command[-1]}"

    children = [_in_child(activate) for _ in range(COMMANDS)]
    assert [_exit_code(child) for child in children] == [0] * COMMANDS
    assert submitted.read_text().split() == ["0:2", "3:1"]
    facts = fold_facts(experiment)
    assert [(job.first_index, job.count) for job in facts.jobs[1:]] == [(0, 2), (3, 1)]
    assert facts.resubmitting is None


def _in_child(act: Callable[[], None]) -> int:
    """The id of a process that does this, and exits with 1 where that raises."""
    child = os.fork()
    if child:
        return child
    try:
        act()
        os._exit(0)
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(1)


def _exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("when", ["before sbatch", "after sbatch", "job over"])
def test_the_next_activate_recovers_what_a_killed_one_has_announced(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, when: str
) -> None:
    """It finds the job of the killed command by its mark, and submits the rest."""
    experiment, mark = lost(scene), tmp_path / "mark"
    _activate_and_die(scene, None if when == "before sbatch" else mark)
    assert fold_facts(experiment).resubmitting is not None

    def find(folder: Path, wanted: str) -> str | None:
        return "55" if mark.exists() and wanted == mark.read_text() else None

    monkeypatch.setattr(scene.queue, "submitted", find)
    for ref in ("55_0", "55_1") if mark.exists() else ():
        scene.queue.put(ref, "FAILED" if when == "job over" else "PENDING")
    scene.client.experiment(1).activate()
    facts = fold_facts(experiment)
    assert facts.resubmitting is None
    if when == "after sbatch":
        assert queued(scene) == [("3", 1)]
        assert [(job.job_id, job.first_index) for job in facts.jobs[1:]] == [("55", 0), ("101", 3)]
    else:
        assert queued(scene) == [("0", 2), ("3", 1)]


def _activate_and_die(scene: Scene, mark: Path | None) -> None:
    """In a process of its own, at its first sbatch; if it has queued the job, it tells the mark."""

    def die(request: JobRequest) -> str:
        if mark is not None:
            mark.write_text(request.mark or "")
        os._exit(9)

    def activate() -> None:
        scene.queue.submit = die  # type: ignore[method-assign]
        scene.client.experiment(1).activate()

    assert _exit_code(_in_child(activate)) == 9


def test_a_command_that_waits_too_long_for_another_says_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another machine is believed for a quarter of an hour."""
    monkeypatch.setattr(resubmission, "_WAIT", 0.0)
    experiment = lost(scene)
    parts = ((0, 2, 1),)
    experiment.append(Resubmitting(parts=parts, process="ab-12-7"))
    with pytest.raises(LifecycleError, match=r"another command is submitting .*in 15 min"):
        scene.client.experiment(1).activate()
    assert queued(scene) == []
    experiment.append(Resubmitting(parts=parts, process="ab-12-7", time=time.time() - 3600))
    scene.client.experiment(1).activate()
    assert queued(scene) == [("0", 2), ("3", 1)]


@pytest.mark.parametrize("message", ["Invalid account", "Unable to contact slurm controller"])
def test_a_failed_activate_can_be_repeated_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    """Also by the process that failed, which lives on."""
    experiment, submit = lost(scene), scene.queue.submit

    def refuse(request: JobRequest) -> str:
        raise SlurmError(message)

    monkeypatch.setattr(scene.queue, "submit", refuse)
    with pytest.raises(SlurmError, match=message):
        scene.client.experiment(1).activate()
    open_one = fold_facts(experiment).resubmitting
    assert (open_one is not None) is message.startswith("Unable")
    assert open_one is None or open_one.process == str(Identity.own())
    monkeypatch.setattr(scene.queue, "submit", submit)
    scene.client.experiment(1).activate()
    assert queued(scene) == [("0", 2), ("3", 1)]
