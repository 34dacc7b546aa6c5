"""A search by two metrics and a constraint, through the command line on the real cluster."""

from __future__ import annotations

import pytest

from detslurm.searcher.objectives import Objectives, front
from tests.e2e.desk import Desk
from tests.e2e.test_search import assert_sound, project, state_of

pytestmark = [pytest.mark.cluster]

# A number alone is refused: the search could not compare it.
MEASURES = """\
    import detslurm as det

    info = det.get_cluster_info()
    x = info.trial.hparams["x"]
    with det.core.init() as core:
        for op in core.searcher.operations():
            values = {"loss": x, "latency_ms": (1 - x) ** 2, "memory_gb": 40 * x + 4}
            core.train.report_validation_metrics(op.length, values)
            try:
                op.report_completed(values["loss"])
            except RuntimeError as error:
                print("refused:", error, flush=True)
            op.report_completed(values)
"""
SEARCH = """\
    searcher:
      name: optuna
      sampler: nsgaii
      sampler_args: {population_size: 2}
      metrics: [{name: loss, smaller_is_better: false}, {name: latency_ms}]
      constraints: {memory_gb: "<= 40"}
      max_length: {batches: 1}
      max_trials: 5
      max_concurrent_trials: 2
    hyperparameters:
      x: {type: double, minval: 0, maxval: 1}
    reproducibility: {experiment_seed: 5}
    """


def test_a_search_by_two_metrics_and_a_constraint(desk: Desk) -> None:
    """Every trial's values reach the search by name, and so the front can be had of its log."""
    config = project(desk, MEASURES, SEARCH)
    assert "5 trials" in desk.run("preview-search", str(config)).stdout
    assert "front: trials" in desk.run("simulate", str(config), "--slots", "2").stdout
    number = desk.submit(config)
    refused = desk.run("submit", str(config), "searcher.pruner=median", check=False)
    assert refused.returncode and "searcher.pruner" in refused.stderr
    desk.wait_for_state(number, "COMPLETED")
    state = assert_sound(desk, number)
    assert "refused: the search compares trials by loss, latency_ms, memory_gb" in desk.log(number)
    objectives = Objectives.of(desk.experiment(number).config()["searcher"])
    drawn = [(trial.hparams or {})["x"] for trial in state_of(desk, number).trials]
    assert [trial.metrics["loss"] for trial in state.trials] == drawn
    best = front([objectives.result(trial.metrics) for trial in state.trials])
    # Among those that fit into the memory, the largest x is the best in both.
    assert best == [max((x, i) for i, x in enumerate(drawn) if x <= 0.9)[1]]
