"""`searcher.prior_experiments` reads other experiments once, at the submission."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml

from detslurm.config import load_experiment
from detslurm.config.secret_names import MASK
from detslurm.sdk.errors import SubmitError
from detslurm.sdk.submission.prior_results import prior_results
from detslurm.store import ExperimentDir
from tests.sdk.scenes import Scene

CONFIG = """\
entrypoint: "true"
hyperparameters: {lr: {type: double, minval: 0, maxval: 1}}
searcher: {name: optuna, metric: loss, max_trials: 4, prior_experiments: [1, 2]}
"""


def config(scene: Scene, **searcher: Any) -> dict[str, Any]:
    path = scene.root / "next.yaml"
    path.write_text(CONFIG)
    found = load_experiment(path, root=scene.store.path).config.to_dict()
    return {**found, "searcher": {**found["searcher"], **searcher}}


def earlier(scene: Scene) -> None:
    """Two experiments: three results, one outside, one that goes on, one that failed."""
    experiment = scene.experiment(trials=4)
    scene.run(experiment, 0, losses=[0.9, 0.5], hparams={"lr": 0.25}, end="completed")
    scene.run(experiment, 1, losses=[0.4], hparams={"lr": 0.5}, end="completed")
    scene.run(experiment, 2, losses=[0.3], hparams={"lr": 1.5}, end="completed")
    scene.run(experiment, 3, losses=[0.2], hparams={"lr": 0.7}, end="error")
    other = scene.experiment(trials=2, name="other")
    scene.run(other, 0, losses=[0.1], hparams={"lr": 0.75}, end="completed")
    scene.run(other, 1, losses=[0.1], hparams={"lr": 0.8})


@pytest.mark.parametrize("owner", [None, "alice"])
def test_trials_that_have_completed(
    scene: Scene, owner: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of their ids, with their last validation; a colleague's, too."""
    earlier(scene)
    monkeypatch.setattr(ExperimentDir, "foreign_owner", lambda self: owner)
    found = prior_results(config(scene), scene.store, None)
    assert [known.hparams["lr"] for known in found.results] == [0.25, 0.5, 0.75]
    assert [known.reports for known in found.results] == [[(2, 0.5)], [(1, 0.4)], [(1, 0.1)]]
    assert (found.experiments, found.outside, found.unmeasured) == ([1, 2], 1, 0)


def test_nothing_to_learn_from_is_refused(scene: Scene) -> None:
    earlier(scene)
    with pytest.raises(SubmitError, match=r"there is no experiment 9"):
        prior_results(config(scene, prior_experiments=[1, 9]), scene.store, None)
    with pytest.raises(SubmitError, match=r"nothing to learn from: 0 results of .*1 without the"):
        prior_results(config(scene, prior_experiments=[2], metric="acc"), scene.store, None)


def test_a_copy_has_the_results_of_its_original(scene: Scene) -> None:
    """Those experiments may be gone; with another space or metric they are read again."""
    earlier(scene)
    found = prior_results(config(scene), scene.store, None)
    text = CONFIG.replace("1, 2", "8, 9")
    original, log = scene.search(text=text)
    log.commit([msgspec.to_builtins(found)])
    wanted = config(scene, prior_experiments=[8, 9])
    assert prior_results(wanted, scene.store, original) == found
    with pytest.raises(SubmitError, match="there is no experiment 8"):
        prior_results(
            {**wanted, "searcher": {**wanted["searcher"], "metric": "acc"}}, scene.store, original
        )


CHOICE = """\
entrypoint: "true"
hyperparameters:
  data:
    type: choice
    vals: [none, {url: x, api_key: KEY, size: {type: int, minval: 1, maxval: 9}}]
searcher: {name: optuna, metric: loss, max_trials: 4, prior_experiments: [1]}
"""


def test_secrets_in_a_choice(scene: Scene) -> None:
    """The log has none of them, and results count that were made with another key."""
    then = scene.experiment(text=CHOICE.replace("KEY", "hush-old"))
    scene.run(then, losses=[0.5], end="completed",
              hparams={"data": {"url": "x", "api_key": MASK, "size": 3}})  # fmt: skip
    space = load_experiment(yaml.safe_load(CHOICE.replace("KEY", "hush-new"))).config.to_dict()
    found = prior_results(space, scene.store, None)
    assert [one.hparams for one in found.results] == [
        {"data": {"url": "x", "api_key": MASK, "size": 3}}
    ]
