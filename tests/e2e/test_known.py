"""A search that starts from what another one has found, through the command line."""

from __future__ import annotations

import pytest

from tests.e2e.desk import Desk
from tests.e2e.test_search import project, state_of
from tests.envelope import unwrap

pytestmark = [pytest.mark.cluster]

SQUARE = """\
    import detslurm as det

    with det.core.init() as core:
        x = det.get_cluster_info().trial.hparams["x"]
        core.train.report_validation_metrics(1, {"loss": (x - 0.3) ** 2})
"""
SPACE = """\
    hyperparameters: {x: {type: double, minval: 0, maxval: 1}, n: 3}
    reproducibility: {experiment_seed: 5}
    searcher: {metric: loss, max_concurrent_trials: 1, """


def test_a_search_starts_from_what_is_known(desk: Desk) -> None:
    """Points come first, a named trial among them; the sampler learns from the earlier results.

    The earlier experiment is deleted before the new one begins.
    """
    config = project(desk, SQUARE, SPACE + "name: random, max_trials: 3, first: [{x: 0.5}]}\n")
    first = desk.submit(config, "slurm.trials_per_job=3")
    desk.wait_for_state(first, "COMPLETED")
    assert desk.trial(first).hparams == {"n": 3, "x": 0.5}
    named = desk.view(first).trials[1]
    assert named.hparams is not None

    known = f"first: [{{trial: {named.id}}}, {{x: 0.25}}], prior_experiments: [{first}]"
    config = project(desk, SQUARE, f"{SPACE}name: optuna, max_trials: 3, {known}}}\n", "next")
    taken = f"3 results of experiment {first}"
    assert taken in desk.run("submit", str(config), "--dry-run").stdout
    again = desk.submit(config, "--paused")
    desk.run("experiment", "delete", str(first), "--yes")
    desk.run("experiment", "activate", str(again))
    shown = unwrap(desk.run("experiment", "config", str(again), "--json").stdout)
    assert shown["searcher"]["first"] == [{"x": named.hparams["x"]}, {"x": 0.25}]
    desk.wait_for_state(again, "COMPLETED")
    tried = [trial.hparams for trial in desk.view(again).trials]
    assert tried[:2] == [named.hparams, {"n": 3, "x": 0.25}]
    state = state_of(desk, again)
    assert state.known is not None
    assert [trial.hparams["x"] for trial in state.known.results][:2] == [0.5, named.hparams["x"]]
    assert taken in desk.run("experiment", "describe", str(again)).stdout
