"""Outputs of trials in lists, downloads, collections, bundles, and as the start of others."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from detslurm.sdk import Client, LifecycleError
from detslurm.store import ExperimentDir, RunLog
from detslurm.store.history import read_continued
from detslurm.store.records import Lost
from tests.sdk.scenes import Scene
from tests.store.collecting import collect, on_disk, policy

SINGLE = """\
name: test
entrypoint: python3 train.py
outputs: [checkpoints]
searcher: {name: single, metric: loss, max_length: 10}
slurm: {slot_type: cpu}
"""
ID = str(uuid.uuid4())


def run(
    scene: Scene,
    experiment: ExperimentDir,
    end: str | None = "completed",
    listed: bool = True,
    outputs: str = ID,
) -> None:
    """A run with outputs, which writes one file."""
    trial = experiment.trial(experiment.created().first_trial)
    folder = scene.checkpoints / outputs
    folder.mkdir(parents=True, exist_ok=True)
    claim = {"uuid": outputs, "path": str(folder)}
    start = trial.open_run({"hparams": {"lr": 0.1}, "seed": 1, "time": 1.0, "outputs": claim})
    trial.records_path(start.run).touch()
    (folder / "last.pt").write_text("weights")
    left = {"uuid": outputs, "resources": {"last.pt": 7}, "time": 2.0}
    if end is not None:
        more = {"outputs": left} if listed else {}
        trial.write_end(start.run, {"outcome": end, "exit_code": 0, "time": 2.0, **more})


def test_they_are_a_checkpoint_of_their_own_kind(scene: Scene, tmp_path: Path) -> None:
    """Listed once however many runs left them; no run resumes from them as from a checkpoint."""
    experiment = scene.experiment()
    run(scene, experiment, end="preempted")
    run(scene, experiment)
    trial = scene.client.trial(experiment.created().first_trial)
    (saved,) = trial.checkpoints()
    assert (saved.uuid, saved.kind, saved.size, saved.state) == (ID, "outputs", 7, "COMPLETED")
    assert trial.view.latest_checkpoint is None
    with pytest.raises(LifecycleError, match="has no checkpoint"):
        trial.latest_checkpoint()
    target = trial.outputs().download(tmp_path / "copy")
    assert (target / "last.pt").read_text() == "weights"
    assert scene.client.experiment(experiment.id).disk_usage().checkpoints == 7
    scene.client.experiment(experiment.id).delete()
    assert on_disk(scene) == set()


def test_a_trial_that_may_go_on_keeps_them(scene: Scene) -> None:
    """The policy deletes them once it is over; a collection of leftovers never."""
    experiment = scene.experiment()
    scene.set_policy(experiment, policy(latest=0))
    run(scene, experiment, end="preempted", listed=False)
    scene.client.gc()
    run(scene, experiment, end="preempted")
    collect(scene, experiment)
    scene.client.gc()
    assert on_disk(scene) == {ID}
    run(scene, experiment)
    collect(scene, experiment)
    assert on_disk(scene) == set()


def test_a_continuation_begins_with_them(scene: Scene) -> None:
    """Without a checkpoint, too, and they are protected as a checkpoint would be."""
    experiment = scene.experiment()
    run(scene, experiment)
    one = scene.client.experiment(experiment.id)
    done = one.continue_(["searcher.max_length=20"])
    begins = read_continued(scene.store.experiment(done.id).trial(done.submission.first_trial))
    assert begins is not None
    assert (begins.uuid, begins.outputs) == (None, str(scene.checkpoints / ID))
    with pytest.raises(LifecycleError, match="is needed for"):
        one.delete()


def test_outputs_of_batches_are_no_begin(scene: Scene) -> None:
    """They are results: neither a fork nor a continuation begins with a copy of them."""
    experiment = scene.experiment(text=SINGLE)
    trial = experiment.trial(experiment.created().first_trial)
    start = trial.open_run({"hparams": {"lr": 0.1}, "seed": 1, "time": 1.0})
    saved = {"uuid": str(uuid.uuid4()), "steps": 5, "resources": {}, "metadata": {}}
    with RunLog.open(trial.records_path(start.run)) as log:
        log.append({"t": "checkpoint", **saved, "outputs": {"uuid": ID, "resources": {"a": 1}}})
    trial.write_end(start.run, {"outcome": "completed", "exit_code": 0, "time": 2.0})
    for name in (ID, saved["uuid"]):
        (scene.checkpoints / str(name)).mkdir(parents=True)
    assert scene.client.trial(trial.id).outputs().uuid == ID
    assert begin_of_fork(scene, experiment) is None
    done = scene.client.experiment(experiment.id).continue_(["searcher.max_length=20"])
    begins = read_continued(scene.store.experiment(done.id).trial(done.submission.first_trial))
    assert begins is not None and begins.outputs is None


@pytest.mark.parametrize(
    ("overrides", "begins"),
    [
        ([], True),
        (["outputs=null"], False),
        (["searcher.source_checkpoint_uuid=null"], False),
        (["searcher.name=random", "searcher.max_trials=2"], False),
    ],
)
def test_a_fork_of_one_trial_begins_with_them(
    scene: Scene, overrides: list[str], begins: bool
) -> None:
    """Once the trial is over; a new search, and a fork that is to begin without, do not."""
    experiment = scene.experiment(text=SINGLE)
    assert begin_of_fork(scene, experiment) is None
    run(scene, experiment)
    path = str(scene.checkpoints / ID)
    assert begin_of_fork(scene, experiment, overrides) == (path if begins else None)
    assert any(f"begins with a copy of {path}" in text for text in scene.warnings) == begins


def test_a_fork_of_a_fork_begins_with_those_of_the_fork(scene: Scene) -> None:
    """They are protected as a checkpoint would be."""
    experiment = scene.experiment(text=SINGLE)
    run(scene, experiment)
    done = scene.client.experiment(experiment.id).fork()
    made, own = scene.store.experiment(done.id), str(uuid.uuid4())
    run(scene, made, outputs=own)
    assert begin_of_fork(scene, made) == str(scene.checkpoints / own)
    again = scene.client.experiment(made.id).fork(from_checkpoint=ID)
    created = scene.store.experiment(again.id).created()
    assert created.source_outputs == str(scene.checkpoints / ID), "as named"
    with pytest.raises(LifecycleError, match="is needed for"):
        scene.client.experiment(made.id).delete()


def begin_of_fork(
    scene: Scene, experiment: ExperimentDir, overrides: Sequence[str] = ()
) -> str | None:
    """The directory with which the trials of a fork begin."""
    done = scene.client.experiment(experiment.id).fork(overrides)
    return scene.store.experiment(done.id).created().source_outputs


def test_those_of_a_lost_run_are_found(scene: Scene) -> None:
    """No run has listed them: its node failed. A continuation begins with them all the same."""
    experiment = scene.experiment()
    run(scene, experiment, end=None)
    trial = scene.client.trial(experiment.created().first_trial)
    assert trial.checkpoints() == []
    experiment.append(Lost(trials=(trial.id,), reason="NODE_FAIL"))
    (saved,) = scene.client.trial(trial.id).checkpoints()
    assert (saved.uuid, saved.kind, saved.state) == (ID, "outputs", "COMPLETED")
    done = scene.client.experiment(experiment.id).continue_([])
    begins = read_continued(scene.store.experiment(done.id).trial(done.submission.first_trial))
    assert begins is not None and begins.outputs == str(scene.checkpoints / ID)


def test_bundles_take_them_along(scene: Scene, tmp_path: Path) -> None:
    """With an id of their own, in the storage of the other site."""
    experiment = scene.experiment()
    run(scene, experiment)
    scene.client.stored(experiment.id).kill()
    file = tmp_path / "a.tar"
    made = scene.client.experiment(experiment.id).bundle(file, checkpoints="latest")
    assert made.checkpoints == (ID,)
    other: Client = Scene(tmp_path / "there" / "store").client
    done = other.import_bundle(file)
    outputs = other.experiment(done.experiment_id).trials()[0].outputs()
    assert outputs.uuid != ID and outputs.path is not None
    assert (outputs.path / "last.pt").read_text() == "weights"
