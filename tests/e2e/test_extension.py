"""Searches that go on with more trials or longer ones, on the real cluster."""

from __future__ import annotations

import os
import signal

import pytest

from detslurm.searcher import State
from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.processes import find_process
from tests.e2e.test_going_on import go_on
from tests.e2e.test_main_job import make_room
from tests.e2e.test_search import (
    LEARNS,
    assert_sound,
    hold_back,
    let_go,
    outcomes,
    project,
    rungs,
    wait_until_working,
)
from tests.envelope import unwrap

pytestmark = [pytest.mark.cluster]

ASHA = """\
    searcher:
      name: async_halving
      metric: loss
      max_length: {{batches: 9}}
      num_rungs: 2
      max_trials: {0}
      divisor: 3
      max_concurrent_trials: {1}
    hyperparameters:
      x: {{type: double, minval: 0, maxval: 1}}
    reproducibility: {{experiment_seed: 5}}
    """


def promoted(state: State) -> set[int]:
    """The trials with a result on a second rung."""
    return {index for _, _, index in state.brackets[0].rungs[1].results}


def test_a_search_goes_on_with_more_trials_and_then_with_longer_ones(desk: Desk) -> None:
    """The trials that it had show their results, and only those run again that are promoted: from
    their checkpoints, which are kept as long as they may be needed."""
    first = desk.submit(project(desk, LEARNS, ASHA.format(4, 2)))
    desk.wait_for_state(first, "COMPLETED")
    before = assert_sound(desk, first)
    second = go_on(desk, first, "--config", "searcher.max_trials=8")
    desk.wait_for_state(second, "COMPLETED")
    after = assert_sound(desk, second)
    assert rungs(desk, first)[0][0] == 4 and rungs(desk, second)[0][0] == 8
    assert promoted(before) < promoted(after)
    for index in range(4):
        old, new = desk.trial(first, index), desk.trial(second, index)
        assert (new.state, new.hparams, new.seed) == ("COMPLETED", old.hparams, old.seed)
        assert new.continues == old.id
        ran_on = index in promoted(after) - promoted(before)
        assert new.run_count == 1 + ran_on and new.steps == (9 if ran_on else old.steps)
        if ran_on:
            assert new.runs[1].resumed_steps == old.steps == 3
        else:
            assert new.best_validation == old.best_validation
    view, old_view = desk.view(second), desk.view(first)
    assert view.best_value is not None and old_view.best_value is not None
    assert view.best_value <= old_view.best_value and view.parent == first
    shown = unwrap(desk.run("e", "describe", str(second), "--json").stdout)
    assert [rung["trials"] for rung in shown["search"]["brackets"][0]["rungs"]] == rungs(
        desk, second
    )[0]

    third = go_on(desk, second, "--config", "searcher.max_length.batches=27")
    desk.wait_for_state(third, "COMPLETED")
    longest = assert_sound(desk, third)
    assert [rung.units for rung in longest.brackets[0].rungs] == [3, 9, 27]
    best = min(promoted(after), key=lambda i: desk.trial(second, i).steps and score(after, i))
    trained = desk.trial(third, best)
    assert (trained.runs[1].resumed_steps, trained.steps) == (9, 27)
    assert sum(row.run_count for row in desk.view(third).trials) == 8 + 1
    refused = desk.run("e", "delete", str(second), "--yes", check=False)
    assert f"is needed for experiment {third}" in refused.stderr


def score(state: State, index: int) -> float:
    """A trial's result on the second rung."""
    return state.trials[index].rung_results[1][0]


@pytest.mark.nightly
def test_a_search_goes_on_beside_another_one_through_harm(desk: Desk, site: Cluster) -> None:
    """From 16 trials to 32, with a preemption and a killed runner: no result of the search before
    is lost, and no trial of it runs without need."""
    first = desk.submit(project(desk, LEARNS, ASHA.format(16, 4)))
    desk.wait_for_state(first, "COMPLETED")
    before = assert_sound(desk, first)
    other = desk.submit(project(desk, LEARNS, ASHA.format(8, 2), "other"))
    words = ["searcher.max_trials=32", "resources.resource_pool=low"]
    given = [word for override in words for word in ("--config", override)]
    done = desk.run("experiment", "continue", str(first), "--paused", "--json", *given)
    second = int(unwrap(done.stdout)["experiment_id"])
    hold_back(desk, second)
    desk.run("experiment", "activate", str(second))
    wait_until_working(desk, second, 4)
    make_room(desk)
    wait_for(lambda: outcomes(desk, second)["preempted"] == 4, PATIENCE, "the trials to leave")
    wait_until_working(desk, second, 4)
    os.kill(find_process(f"detslurm.exec.runner {desk.experiment(second).path} "), signal.SIGKILL)
    let_go(desk, second)
    desk.wait_for_state(second, "COMPLETED")
    desk.wait_for_state(other, "COMPLETED")
    assert_sound(desk, other)
    after = assert_sound(desk, second)
    assert rungs(desk, second)[0][0] == 32 and outcomes(desk, second)["lost"] == 1
    assert promoted(before) <= promoted(after)
    for index, trial in enumerate(before.trials):
        view = desk.trial(second, index)
        assert after.trials[index].rung_results[: len(trial.rung_results)] == trial.rung_results
        assert (view.run_count > 1) == (index in promoted(after) - promoted(before))
