"""What one node knew must not become what everybody is told: clients of file servers remember."""

from __future__ import annotations

import pytest

from detslurm.exec.intents import Intents
from detslurm.exec.outcome import Cause
from detslurm.store import RunLog, fold_facts, fold_trial
from tests.sdk.scenes import Scene
from tests.store.clients import on


@pytest.mark.parametrize("begun", [True, False])
def test_a_trial_that_ended_elsewhere_is_not_declared_lost(scene: Scene, begun: bool) -> None:
    """Its job is gone when this node, which has seen no end record before, reads again."""
    experiment = scene.experiment(job="7")
    if begun:
        scene.run(experiment, losses=[0.5])
    scene.queue.put("7", "RUNNING")
    assert scene.client.trial(1).state == ("RUNNING" if begun else "QUEUED")
    with on("compute"):
        if not begun:
            scene.run(experiment, losses=[0.5])
        experiment.trial(1).write_end(1, {"outcome": "completed", "time": 2.0})
    scene.queue.put("7", "COMPLETED")
    assert scene.client.trial(1).state == "COMPLETED"
    assert fold_facts(experiment).lost == {}


def test_an_index_holds_nothing_older_than_its_ledger(scene: Scene) -> None:
    """A node that has looked before a name was set lists the experiment with that name."""
    experiment = scene.experiment()
    scene.run(experiment, losses=[0.5])
    assert [row.name for row in scene.client.rows()] == ["test"]
    with on("compute"):
        experiment.trial(1).write_end(1, {"outcome": "completed", "time": 2.0})
    with on("another"):
        scene.client.experiment(1).set_name("new")
    for node in ("here", "another", "third"):
        with on(node):
            assert [row.name for row in scene.client.rows()] == ["new"]


def test_a_store_that_was_not_there_is_found(scene: Scene) -> None:
    """A node that has looked in vain finds what was made elsewhere since."""
    assert scene.client.missing() is not None
    with on("compute"):
        scene.experiment()
    assert scene.client.missing() is None
    assert scene.client.trial(1).state == "QUEUED"


def test_a_notified_runner_sees_the_intent(scene: Scene) -> None:
    """However often it has looked before."""
    intents = Intents(scene.experiment())
    for intent, cause in (("pause", Cause.PAUSE), ("activate", None), ("cancel", Cause.CANCEL)):
        intents.refresh()
        with on("login"):
            getattr(scene.client.experiment(1), intent)()
        intents.refresh()
        assert intents.cause is cause


def test_the_next_run_counts_all_that_was_saved(scene: Scene) -> None:
    """A node that has read the log when it was shorter does not cut off what came after."""
    experiment = scene.experiment()
    trial = scene.run(experiment, losses=[0.5])
    assert fold_trial(trial).latest_checkpoint is None
    with on("compute"), RunLog.open(trial.records_path(1)) as log:
        log.commit({"t": "checkpoint", "uuid": "c", "steps": 1, "resources": {}, "metadata": {}})
    trial.open_run({"time": 3.0})
    latest = fold_trial(trial).latest_checkpoint
    assert latest is not None and latest.uuid == "c"
