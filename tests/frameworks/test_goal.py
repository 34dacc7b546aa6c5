"""The goal of a search: its operations are completed with what the search compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from detslurm.core import SearcherOperation, Unit
from detslurm.frameworks.goal import Goal


class Operation:
    """An operation that keeps what completes it."""

    length, is_chief = 3, True

    def __init__(self) -> None:
        self.completed: list[Any] = []

    def report_completed(self, metric: Any) -> None:
        self.completed.append(metric)


def goal_of(operation: Operation, compared: Sequence[str]) -> Goal:
    return Goal(iter([cast(SearcherOperation, operation)]), Unit.BATCHES, compared)


@pytest.mark.parametrize(
    ("compared", "expected"),
    [(["loss"], 0.5), (["loss", "gb"], {"loss": 0.5, "gb": 7})],
)
def test_one_metric_is_a_number_and_several_are_a_mapping(
    compared: list[str], expected: Any
) -> None:
    operation = Operation()
    goal = goal_of(operation, compared)
    goal.complete({"gb": 7, "loss": 0.5, "more": 1})
    assert operation.completed == [expected]
    assert goal.is_over


def test_all_that_is_missing_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"compares 'speed', 'gb'.*there are loss"):
        goal_of(Operation(), ["loss", "speed", "gb"]).complete({"loss": 0.5})
