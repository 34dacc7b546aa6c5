"""`{trial: N}` among the points that are tried first is read once, at the submission."""

from __future__ import annotations

from typing import Any

import pytest

from detslurm.config import load_experiment
from detslurm.sdk.errors import SubmitError
from detslurm.sdk.submission.first_points import with_named_trials
from detslurm.store import Store
from tests.sdk.scenes import Scene

SPACE: dict[str, Any] = {
    "lr": {"type": "double", "minval": 0.0, "maxval": 1.0},
    "opt": {"layers": {"type": "int", "minval": 1, "maxval": 8}},
    "batch": 32,
}


def points(store: Store, *first: dict[str, Any], space: Any = SPACE) -> list[Any]:
    searcher = {"name": "random", "metric": "loss", "max_trials": 4, "first": list(first)}
    config = {"entrypoint": "true", "searcher": searcher, "hyperparameters": space}
    loaded = with_named_trials(load_experiment(config, root=store.path), store)
    return list(loaded.config.to_dict()["searcher"]["first"])


def test_a_trial_stands_for_its_values_of_what_varies(scene: Scene) -> None:
    """Constants are the new search's own, and what it does not have is left out."""
    hparams = {"lr": 0.5, "opt": {"layers": 3, "name": "sgd"}, "batch": 64, "password": "********"}
    scene.run(scene.experiment(), hparams=hparams)
    found = points(scene.store, {"lr": 0.25}, {"trial": 1})
    assert found == [{"lr": 0.25}, {"lr": 0.5, "opt": {"layers": 3}}]


def test_trials_that_can_not_be_tried_again(scene: Scene) -> None:
    experiment = scene.experiment(trials=3)
    scene.run(experiment, 0, hparams={"lr": 0.5})
    scene.run(experiment, 1, hparams={"lr": 2.0, "opt": {"layers": 3}})
    with pytest.raises(SubmitError) as refused:
        points(scene.store, *({"trial": number} for number in (1, 2, 3, 9)))
    lines = str(refused.value).splitlines()
    assert "first[0]: trial 1 has no hyperparameter 'opt.layers', which varies" in lines[0]
    assert "first[1]: lr of trial 2: a number from 0 to 1 is expected, found 2.0" in lines[1]
    assert "first[2]: trial 3 has no hyperparameters yet" in lines[2]
    assert "first[3]: there is no trial 9" in lines[3]
