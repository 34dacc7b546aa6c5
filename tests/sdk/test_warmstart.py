"""Warm starts are looked at before anything is queued."""

from __future__ import annotations

from typing import Any

import pytest

from detslurm.sdk.submission.preflight import warm_start_problems
from detslurm.sdk.submission.sources import source_notes, warm_start, warm_start_sources
from detslurm.store import ExperimentDir
from tests.sdk.scenes import Scene


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({"source_trial_id": 1}, None),
        ({"source_trial_id": 2}, "searcher.source_trial_id: trial 2 has no checkpoint"),
        ({"source_trial_id": 9}, "searcher.source_trial_id: there is no trial 9"),
        ({"source_checkpoint_uuid": "kept"}, None),
        ({"source_checkpoint_uuid": "gone"}, "checkpoint gone is not in"),
        ({"source_checkpoint_uuid": "../x"}, "searcher.source_checkpoint_uuid: '../x' is not a"),
        ({}, None),
    ],
)
def test_the_checkpoint_has_to_be_there(
    scene: Scene, source: dict[str, Any], problem: str | None
) -> None:
    """A trial or checkpoint that there isn't would begin cold, or fail in the queue."""
    experiment = scene.experiment(trials=2)
    scene.run(experiment, losses=[0.5], checkpoint="kept", end="completed")
    storage = experiment.config()["checkpoint_storage"]
    config = {"searcher": source, "checkpoint_storage": storage}
    found = warm_start_problems(config, scene.store)
    assert found == [] if problem is None else problem in found[0]


def test_a_damaged_checkpoint_is_refused(scene: Scene) -> None:
    """Each run would end with the same error."""
    scene.run(scene.experiment(), losses=[0.5], checkpoint="kept", end="completed")
    config = scene.store.experiment(1).config()
    (scene.checkpoints / "kept" / "weights").unlink()
    for source in ({"source_trial_id": 1}, {"source_checkpoint_uuid": "kept"}):
        (problem,) = warm_start_problems({**config, "searcher": source}, scene.store)
        assert "checkpoint kept is damaged, missing: weights" in problem


def test_a_colleagues_checkpoint_is_not_protected(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner may delete it any time, and whoever submits is told so."""
    scene.run(scene.experiment(), losses=[0.5], checkpoint="kept", end="completed")
    config = {"searcher": {"source_checkpoint_uuid": "kept"}}
    found = warm_start(config, scene.store, None)
    assert warm_start_sources(scene.store, found) == {1: ("kept",)}
    assert source_notes(scene.store, found) == []
    monkeypatch.setattr(ExperimentDir, "foreign_owner", lambda self: "alice")
    assert warm_start_sources(scene.store, found) == {}
    (note,) = source_notes(scene.store, found)
    assert "belongs to alice, who may delete it" in note


def test_storage_elsewhere(scene: Scene) -> None:
    """A checkpoint of another storage can't be restored; what lies in a bucket isn't asked for."""
    scene.run(scene.experiment(), losses=[0.5], checkpoint="kept", end="completed")
    elsewhere = {"type": "shared_fs", "host_path": str(scene.root / "other")}
    config = {"searcher": {"source_trial_id": 1}, "checkpoint_storage": elsewhere}
    (problem,) = warm_start_problems(config, scene.store)
    assert "the checkpoint_storage of this experiment" in problem
    bucket = {"type": "s3", "bucket": "b"}
    assert warm_start_problems({**config, "checkpoint_storage": bucket}, scene.store) == []
