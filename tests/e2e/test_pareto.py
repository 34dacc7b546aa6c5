"""The Pareto front of a grid on the real cluster: what is shown of it, and what it keeps."""

from __future__ import annotations

import pytest

from tests.e2e.desk import Desk
from tests.e2e.test_search import project

pytestmark = [pytest.mark.cluster]

MEASURES = """\
    import detslurm as det

    width = det.get_cluster_info().trial.hparams["width"]
    found = {"loss": 1 / width, "latency": float(width), "memory": 10.0 * width}
    with det.core.init() as core:
        for step, loss in enumerate((2 * found["loss"], found["loss"]), start=1):
            core.train.report_validation_metrics(step, {**found, "loss": loss})
            with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                (path / "weights").write_text(str(width))
"""

GRID = """\
    searcher:
      name: grid
      metrics: [{name: loss}, {name: latency}]
      constraints: {memory: <= 30}
    hyperparameters:
      width: {type: categorical, vals: [1, 2, 3, 4]}
    checkpoint_storage: {save_trial_best: 0, save_trial_latest: 0}
    """


def test_the_front_is_shown_and_its_checkpoints_stay(desk: Desk) -> None:
    """The widest net breaks the constraint; of each other one the second checkpoint is better."""
    number = desk.submit(project(desk, MEASURES, GRID), "slurm.trials_per_job=4")
    desk.wait_for_state(number, "COMPLETED")
    view = desk.view(number)
    widest, *front = view.trials  # a grid begins with the largest values
    shown = desk.run("experiment", "describe", str(number)).stdout
    assert f"Pareto front : trials {', '.join(str(trial.id) for trial in front)}\n" in shown
    assert view.best_trial == front[0].id and view.best_value == pytest.approx(1 / 3)
    assert widest.best_validation is not None and widest.best_validation.value == 0.25
    for index in range(4):
        states = {one.steps: one.state for one in desk.trial(number, index).checkpoints}
        assert states == {1: "DELETED", 2: "COMPLETED" if index else "DELETED"}
