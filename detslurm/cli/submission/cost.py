"""The costs of a submission, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator

from detslurm._base.quantities import amount
from detslurm.cli.output.human import human_time
from detslurm.sdk.costs.cost import Cost, Figure

_BOUNDS = {"most": "at most", "about": "about", "least": "at least"}


def cost_rows(cost: Cost) -> Iterator[tuple[str, str]]:
    """The name of each figure, its value, and where it comes from."""
    yield "slot-hours", _text(cost.most_slot_hours, amount(cost.most_slot_hours.value or 0))
    yield "expected", _text(cost.expected_slot_hours, _slot_hours(cost.expected_slot_hours))
    yield "wall time", _text(cost.wall_seconds, human_time(cost.wall_seconds.value or 0))


def _slot_hours(figure: Figure) -> str:
    return f"{amount(figure.value or 0, digits=3)} slot-hours"


def _text(figure: Figure, value: str) -> str:
    if figure.value is None:
        return f"unknown: {figure.source}"
    return f"{_BOUNDS[figure.bound]} {value}: {figure.source}"
