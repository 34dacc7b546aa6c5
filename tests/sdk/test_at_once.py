"""Two commands, or a command and a job, at the same moment; objects that were read before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import pytest

from detslurm.sdk.disk import deletion
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.snapshot import ExperimentSnapshot
from detslurm.store import fold_facts
from tests.sdk.scenes import Queue, Scene
from tests.store.clients import elsewhere


class Slow(Queue):
    """One in which something else happens before a command arrives."""

    meanwhile: Callable[[], None]

    def hold(self, refs: Collection[str]) -> None:
        self.meanwhile()
        super().hold(refs)


def lost(scene: Scene) -> None:
    """Experiment 1, whose job died with its node, as `list` has recorded it."""
    scene.run(scene.experiment(), checkpoint="kept")
    scene.queue.put("7", "NODE_FAIL")
    assert scene.client.experiment(1).state == "ERROR"


@elsewhere
def activated(scene: Scene) -> None:
    """Experiment 1 goes on, by a command on another node."""
    scene.client.experiment(1).activate()


def test_a_second_job_does_not_end_the_run_of_the_first(scene: Scene) -> None:
    """Of two jobs for a trial one finds the other at work, and is over: the trial runs on."""
    experiment = scene.experiment()
    scene.submitted(experiment, "8", 0, 1)
    scene.run(experiment, ref="7")
    scene.queue.put("7", "RUNNING")
    scene.queue.put("8", "COMPLETED")
    found = scene.client.experiment(1)
    assert found.state == "ACTIVE" and fold_facts(experiment).lost == {}
    with pytest.raises(LifecycleError, match="it is ACTIVE; kill it first"):
        found.delete()
    scene.queue.put("7", "NODE_FAIL")
    assert scene.client.experiment(1).state == "ERROR"


def test_an_activation_is_seen_by_who_read_before_it(scene: Scene) -> None:
    """What was lost goes on: it is waited for, killed, and not deleted."""
    lost(scene)
    old, older, oldest = (scene.client.experiment(1) for _ in range(3))
    activated(scene)
    scene.run(scene.store.experiment(1), ref="101")
    scene.queue.put("101", "RUNNING")
    with pytest.raises(LifecycleError, match="it is ACTIVE; kill it first"):
        oldest.delete()
    assert older.kill() is True
    assert scene.queue.calls[-1] == ("cancel", "101")
    scene.store.experiment(1).trial(1).write_end(
        2, {"outcome": "killed", "reason": "", "exit_code": 137, "time": 3000.0}
    )
    assert old.wait(interval=0.01) == "CANCELED"


def test_a_pause_that_was_taken_back_is_no_rest(scene: Scene) -> None:
    """`wait` after `activate`, on one object."""
    scene.experiment()
    experiment = scene.client.experiment(1)
    experiment.pause()
    paused = scene.client.experiment(1)
    paused.activate()
    scene.run(scene.store.experiment(1), losses=[0.5], end="completed")
    assert paused.wait(interval=0.01) == "COMPLETED"


def test_what_was_lost_can_be_killed(scene: Scene) -> None:
    """An administrator may have its job queued again."""
    lost(scene)
    scene.queue.put("7", "PENDING")
    assert scene.client.stored(1).kill() is True
    assert ("cancel", "7") in scene.queue.calls
    assert scene.client.experiment(1).state == "CANCELED"
    assert scene.client.stored(1).kill() is False


def test_what_was_lost_without_a_job_stays_as_it_is(scene: Scene) -> None:
    """There is nothing to kill, and `activate` can still queue it again."""
    lost(scene)
    assert scene.client.stored(1).kill() is False
    assert scene.client.experiment(1).state == "ERROR"
    scene.client.experiment(1).activate()
    assert scene.client.experiment(1).state == "ACTIVE"


def test_what_was_lost_is_killed_by_the_record_where_slurm_is_silent(scene: Scene) -> None:
    """Its job may have been queued again: then it reads the record when it begins."""
    lost(scene)
    scene.queue.down = True
    assert scene.client.stored(1).kill() is True
    assert fold_facts(scene.store.experiment(1)).desired.stopping == "kill"


def test_a_script_that_goes_on_is_not_deleted(scene: Scene) -> None:
    """It adds no fact to those that were read."""
    experiment = scene.experiment(job=None, about={"managed": False})
    trial = scene.run(experiment, end="completed")
    old = scene.client.experiment(1)
    assert old.state == "COMPLETED"
    script = {"cluster": "none", "ref": "h:1", "nodes": ["h"]}
    start = {"hparams": {}, "time": time.time(), "host": "n1", "resume": None}
    trial.open_run({**start, "continues": True, "job": script})
    with pytest.raises(LifecycleError, match="it is ACTIVE; kill it first"):
        old.delete()


def test_a_job_of_ones_own_script_that_runs_again(scene: Scene) -> None:
    """An administrator has requeued it; the one that `activate` had queued found it, and is over.
    It works where its user wants."""
    experiment = scene.experiment(job=None, about={"managed": False})
    folder = "/home/u/project"
    for ref in ("7", "8"):
        job = {"cluster": "slurm", "job_id": ref, "first_index": 0, "count": 1, "array": False}
        experiment.append({"type": "submitted", "jobs": [job], "script": {"folder": folder}})
        experiment.append({"type": "script", "folder": folder})
    scene.run(experiment, ref="7")
    scene.queue.put("7", "RUNNING", folder=folder)
    scene.queue.put("8", "COMPLETED", folder=folder)
    assert scene.client.experiment(1).state == "ACTIVE"
    assert fold_facts(experiment).lost == {}


def test_a_deletion_that_an_activation_overtakes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To know all checkpoints of a large experiment takes minutes."""
    lost(scene)
    look = deletion._Saved.of

    def slow(snapshot: ExperimentSnapshot) -> deletion._Saved:
        found = look(snapshot)
        scene.client.experiment(1).activate()
        scene.run(scene.store.experiment(1), ref="101")
        return found

    monkeypatch.setattr(deletion._Saved, "of", slow)
    with pytest.raises(LifecycleError, match="it is ACTIVE again, for it was activated meanwhile"):
        scene.client.experiment(1).delete()
    assert (scene.checkpoints / "kept").exists()
    assert not fold_facts(scene.store.experiment(1)).desired.deleted


def test_a_pause_that_an_activation_overtakes_holds_nothing(scene: Scene) -> None:
    """A queue that answers late has our hold after somebody's release."""
    scene.queue = slow = Slow()
    scene.experiment()
    slow.meanwhile = scene.client.experiment(1).activate
    scene.client.experiment(1).pause()
    assert not fold_facts(scene.store.experiment(1)).desired.paused
    assert not scene.queue.jobs["7"].held
