"""The use of slots by groups of experiments: sums of what is known."""

from __future__ import annotations

import time
from typing import Any

import pytest

from detslurm.sdk.costs.usage import usage_by
from detslurm.store import ExperimentRow
from tests.sdk.scenes import Scene

HOUR = 3600.0


def row(number: int, **fields: Any) -> ExperimentRow:
    """An experiment of one slot that has begun."""
    known: dict[str, Any] = {"owner": "alice", "slots": 1, "trial_count": 1, "started": 1.0}
    return ExperimentRow(id=number, name=f"e{number}", **{**known, **fields})


def measured(seconds: float, productive: float, wall: float) -> dict[str, float]:
    return {"run_seconds": seconds, "productive_seconds": productive, "wall_seconds": wall}


def test_sums_are_weighted_by_slots() -> None:
    """An hour of eight slots counts eight times; a task's time is no training."""
    rows = [
        row(1, slots=8, **measured(HOUR, HOUR / 2, HOUR)),
        row(2, **measured(HOUR, HOUR, HOUR)),
        row(3, task="shell", **measured(HOUR, 0.0, HOUR)),
        row(4, owner="bob", pool="a100"),
    ]
    alice, bob = usage_by(rows, "user", {1: 10, 2: 5})
    assert (alice.name, alice.experiments, alice.slot_hours, alice.disk) == ("alice", 3, 10.0, 15)
    assert alice.ettr == pytest.approx((8 * 0.5 + 1) / 9) and alice.unknown == 0
    assert (bob.slot_hours, bob.ettr, bob.disk, bob.unknown) == (None, None, None, 1)
    assert [one.name for one in usage_by(rows, "pool")] == ["(default)", "a100"]
    assert [one.experiment for one in usage_by(rows, "experiment")] == [1, 2, 3, 4]
    assert {one.name for one in usage_by(rows, "project")} == {"Uncategorized/Uncategorized"}


def test_months_are_in_order() -> None:
    """By the submission."""
    days = [time.mktime((2026, month, 3, 0, 0, 0, 0, 0, -1)) for month in (11, 2, 11)]
    rows = [row(number, created=day) for number, day in enumerate(days)]
    assert [(one.name, one.experiments) for one in usage_by(rows, "month")] == [
        ("2026-02", 1),
        ("2026-11", 2),
    ]


def test_the_index_has_the_sums(scene: Scene) -> None:
    """Of finished experiments nothing else is read; what was deleted is not there."""
    experiment = scene.experiment(2, job=None, about={"slots": 2})
    for number in (1, 2):
        trial = experiment.trial(number)
        trial.open_run({"hparams": {}, "time": 1000.0})
        usage = {"energy": {"nvml": {"joules": 1.8e6, "nodes": 1}}}
        trial.write_end(1, {"outcome": "completed", "time": 1000.0 + HOUR, "usage": usage})
    client = scene.client
    (first,) = client.usage()
    assert first.slot_hours == pytest.approx(4.0) and first.ettr == 1.0
    assert first.energy is not None and first.energy.kwh == pytest.approx(1.0)
    for path in experiment.path.rglob("run-*"):
        path.unlink()
    assert client.usage("user") == [first]
    assert client.usage(since=time.time() + HOUR) == []
    with pytest.raises(ValueError, match="by 'day'"):
        client.usage("day")  # type: ignore[arg-type]
