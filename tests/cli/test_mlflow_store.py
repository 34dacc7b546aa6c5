"""MLflow's own client reads a store through the plug-in `detslurm://`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from detslurm.sdk.jobs.queues import Queues
from tests.sdk.scenes import Scene

# Importing it takes two seconds, of each process that collects tests.
pytestmark = pytest.mark.skipif(not find_spec("mlflow"), reason="mlflow is not installed")


@pytest.fixture
def tracking(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow's client of a store with a finished search, and an experiment whose job waits."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    search = scene.experiment(3, about={"labels": ("night",)})
    for index, losses in enumerate(([0.5, 0.25], [0.4], [0.9])):
        scene.run(search, index, losses=losses, end="completed")
    scene.run(scene.experiment(1), 0)
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=f"detslurm://{scene.root}")


def test_experiments_are_listed_found_and_filtered(tracking: Any) -> None:
    """Newest first; by id, by MLflow's name and by ours."""
    first, second = tracking.search_experiments()[::-1]
    assert (first.experiment_id, second.experiment_id) == ("1", "2")
    assert tracking.get_experiment("1").name == first.name
    assert tracking.get_experiment_by_name(first.name).experiment_id == "1"
    ours = first.name.partition(" ")[2]
    assert tracking.get_experiment_by_name(ours).experiment_id == "2"
    assert tracking.get_experiment_by_name("no such name") is None
    assert [e.experiment_id for e in tracking.search_experiments(filter_string="name LIKE '1 %'")]


def test_runs_are_searched_by_mlflows_language(tracking: Any) -> None:
    """Metrics, parameters, tags and states, in an order."""
    best = tracking.search_runs(["1"], "metrics.loss < 0.45", order_by=["metrics.loss ASC"])
    assert [run.data.metrics["loss"] for run in best] == [0.25, 0.4]
    assert {run.info.status for run in best} == {"FINISHED"}
    lr = best[0].data.params["lr"]
    assert [run.info.run_id for run in tracking.search_runs(["1"], f"params.lr = '{lr}'")]
    assert len(tracking.search_runs(["1", "2"], "tags.`label.night` = 'true'")) == 3
    (waiting,) = tracking.search_runs(["2"])
    assert waiting.info.status == "SCHEDULED" and waiting.info.end_time is None


def test_a_run_has_its_history(tracking: Any) -> None:
    """All values of a metric, by step."""
    history = tracking.get_metric_history("1", "loss")
    assert [metric.value for metric in history] == [0.5, 0.25]
    assert [metric.step for metric in history] == sorted(metric.step for metric in history)
    assert tracking.get_run("1").info.experiment_id == "1"
    assert tracking.get_metric_history("1", "no such metric") == []


def test_a_curve_asks_no_queue(tracking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages ask for each curve, and each run of a search begins with `start_run()`."""

    def query(*_: Any, **__: Any) -> None:
        pytest.fail("the queue is asked")

    monkeypatch.setattr(Queues, "query", query)
    assert tracking.get_metric_history("1", "loss") and tracking.get_run("4")


@pytest.mark.parametrize("run", ["99", "no number"])
def test_an_absent_run_is_mlflows_error(tracking: Any, run: str) -> None:
    """Code that handles MLflow's errors handles ours."""
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException, match=run):
        tracking.get_run(run)


def test_an_archived_experiment_is_not_found_by_its_name(tracking: Any, scene: Scene) -> None:
    """`mlflow.set_experiment` would end a script that names it."""
    old = scene.client.experiment(1)
    old.set_name("old")
    old.archive()
    assert tracking.get_experiment_by_name("old") is None
    assert tracking.get_experiment_by_name("1 old").experiment_id == "1"


def test_what_a_script_writes_has_no_secrets(tracking: Any, scene: Scene) -> None:
    """A script logs all its arguments, under other names than the hyperparameters have."""
    from mlflow.entities import Param, RunTag

    from detslurm.sdk.mlflow_store import _OwnRun

    trial = scene.store.experiment(1).trial(1)
    params = [Param("api_key", "hush"), Param("argv", "--token hush"), Param("lr_2", "0.1")]
    _OwnRun(trial, 1, records_metrics=False).write(params, [RunTag("password", "hush")])
    data = tracking.get_run("1").data
    assert data.params["lr_2"] == "0.1" and "hush" not in str(data)
    assert "hush" not in (trial.path / "run-1.mlflow").read_text()
