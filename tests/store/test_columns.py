"""Metrics as columns, whatever the rows hold."""

from __future__ import annotations

import math
from typing import Any

import pytest

from detslurm.store import MetricRow, Store, metric_columns
from detslurm.store.columns import columns_of
from tests.store import scenes

NAN = math.nan


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ([{"a": 1, "b": 0.5}, {"a": 2, "b": NAN}], {"a": [1.0, 2.0], "b": [0.5, NAN]}),
        ([{"a": 1}, {"b": 2.0}], {"a": [1.0, NAN], "b": [NAN, 2.0]}),
        ([{"a": True, "b": 1}, {"a": False, "b": 2}], {"b": [1.0, 2.0]}),
        ([{"a": {"b": 1}}, {"a": {"b": 2}}], {"a.b": [1.0, 2.0]}),
        ([{"a": "text", "b": 1}, {"a": 1, "b": 1}], {"b": [1.0, 1.0], "a": [NAN, 1.0]}),
        ([{"a": 10**400}] * 2, {"a": [math.inf] * 2}),
        ([{}, {}], {}),
        ([], {}),
    ],
)
def test_numbers_become_columns(
    rows: list[dict[str, Any]], columns: dict[str, list[float]]
) -> None:
    """Floats, alike or not; of names that nobody wants there are none."""
    steps = list(range(1, len(rows) + 1))
    found = columns_of(
        MetricRow("training", step, row) for step, row in zip(steps, rows, strict=True)
    )
    assert list(found.steps) == steps
    assert repr(found.metrics) == repr(columns)
    only = columns_of([MetricRow("training", 1, row) for row in rows], ["b"])
    assert set(only.metrics) == {"b"} & set(columns)


def test_columns_of_steps_that_were_reported_again_or_out_of_order(store: Store) -> None:
    """One place a step, by step, with all that was reported there."""
    trial = scenes.trial(store)
    metrics = scenes.metrics
    scenes.run(trial, [metrics(1, a=1), metrics(1, b=2), metrics(3, a=1), metrics(2, a=5)])
    found = metric_columns(trial, "training")
    assert found.steps == [1, 2, 3]
    assert repr(found.metrics) == "{'a': [1.0, 5.0, 1.0], 'b': [2.0, nan, nan]}"
