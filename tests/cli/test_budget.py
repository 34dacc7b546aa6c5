"""The budget of an experiment, as its user sees and sets it."""

from __future__ import annotations

import time

import pytest

from detslurm.sdk.costs.budget import open_account
from detslurm.sdk.experiments.snapshot import read
from detslurm.store import ExperimentDir
from detslurm.store.records import Intent
from detslurm.store.spending import Spending
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import Scene

USED = "its budget is used (1.01 of 1 slot-hours)"


def test_a_used_budget_is_shown_raised_and_activated(scene: Scene, detslurm: Detslurm) -> None:
    """list and describe have the reason; activate is refused until there is room."""
    experiment = scene.experiment(2, about={"budget": 1.0})
    scene.experiment()
    Spending(experiment).add(1.01 * 3600)
    experiment.append(Intent(intent="pause", reason=USED))
    shown = detslurm("experiment", "describe", 1)
    assert f"State : PAUSED\n          Reason : {USED}\n" in shown.out
    assert "Budget : used 1.01 of 1 slot-hours" in shown.out
    data = detslurm("experiment", "describe", 1, "--json").data
    assert data["budget"] == {"slot_hours": 1.0, "used": pytest.approx(1.01)}
    assert (data["state"], data["pause_reason"]) == ("PAUSED", USED)
    assert USED in detslurm("experiment", "list").out
    refused = detslurm("experiment", "activate", 1)
    assert refused.status == 1
    assert "used 1.01 of 1 slot-hours" in refused.err
    assert "`detslurm experiment set budget 1 N`" in refused.err
    assert detslurm("experiment", "set", "budget", 1, "2").status == 0
    assert detslurm("experiment", "activate", 1).status == 0
    assert ("release", "7") in scene.queue.calls
    after = detslurm("experiment", "describe", 1, "--json").data
    assert (after["state"], after["pause_reason"]) == ("ACTIVE", None)
    assert USED not in detslurm("experiment", "list").out
    detslurm("experiment", "set", "budget", 1, "none")
    assert detslurm("experiment", "describe", 1, "--json").data["budget"] is None


def test_what_was_used_before_counts(scene: Scene, detslurm: Detslurm) -> None:
    """By the runs' records; once, however often the budget is set."""
    experiment = scene.experiment(2, about={"slots": 3})
    for index in range(2):
        scene.run(experiment, index, losses=[0.5], end="completed")
    scene.experiment()
    for hours in ("5", "7", "none", "9"):
        detslurm("experiment", "set", "budget", 1, hours)
    budget = detslurm("experiment", "describe", 1, "--json").data["budget"]
    assert budget == {"slot_hours": 9.0, "used": pytest.approx(2 * 3 * 1000 / 3600)}


def test_a_run_that_died_counts_nothing_of_the_wait_behind_it(scene: Scene) -> None:
    """Its node died, and its job waits in the queue again: nobody knows when it ended, and all time
    since its start would use up any budget. What runs counts up to now."""
    experiment = scene.experiment(2, about={"slots": 3})
    for index in range(2):
        scene.run(experiment, index, ref=f"7_{index}")  # it began in 1970
    scene.queue.put("7_0", "PENDING", "BeginTime")
    scene.client.experiment(1).set_budget(5.0)
    assert Spending(experiment).total() == 0
    scene.client.experiment(1).set_budget(None)
    scene.queue.put("7_0", "RUNNING")
    scene.queue.put("7_1", "RUNNING")
    scene.client.experiment(1).set_budget(1e9)
    used = Spending(experiment).total()
    assert used == pytest.approx(2 * 3 * (time.time() - 1000), rel=0.01)


def test_what_was_used_before_counts_once_for_two_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes second, between the first one's look and its fact, leaves nothing to add."""
    experiment = scene.experiment(about={"slots": 3})
    scene.run(experiment, 0, losses=[0.5], end="completed")
    one, other = read(experiment), read(experiment)
    real, second = Spending.total, iter([other])

    def total(self: Spending) -> float:
        found = real(self)
        for late in second:
            open_account(late)
        return found

    monkeypatch.setattr(Spending, "total", total)
    open_account(one)
    assert Spending(experiment).total() == pytest.approx(3 * 1000)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("many", "neither a number nor none"),
        ("-1", "positive"),
        ("0", "positive"),
        ("nan", "positive"),
    ],
)
def test_a_budget_is_a_positive_number(
    scene: Scene, detslurm: Detslurm, value: str, message: str
) -> None:
    """Refused with the reason, and nothing is stored."""
    scene.experiment()
    result = detslurm("experiment", "set", "budget", 1, "--", value)
    assert result.status != 0 and message in result.err
    assert detslurm("experiment", "describe", 1, "--json").data["budget"] is None


def test_nothing_is_written_to_anothers_experiment(
    scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before what was used so far is recorded."""
    experiment = scene.experiment()
    scene.run(experiment, losses=[0.5], end="completed")
    monkeypatch.setattr(ExperimentDir, "foreign_owner", lambda _: "alice")
    refused = detslurm("experiment", "set", "budget", 1, "2")
    assert refused.status == 1 and "belongs to alice" in refused.err
    assert not (experiment.path / "spending").exists()
