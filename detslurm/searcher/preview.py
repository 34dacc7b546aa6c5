"""Previews a search before it begins: how many trials train how far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from detslurm._base.quantities import counted
from detslurm.searcher.halving.brackets import BracketPlan
from detslurm.searcher.halving.method import Halving
from detslurm.searcher.independent import IndependentTrials
from detslurm.searcher.pbt import PBT
from detslurm.searcher.search import Search


class Row(msgspec.Struct, frozen=True):
    """A number of trials that train for a number of units; None: until their program ends."""

    trials: int
    units: int | None


class BracketRow(msgspec.Struct, frozen=True):
    """One bracket: where its rungs are, its trials, how many of them run at first."""

    rungs: list[int]
    trials: int
    concurrency: int


class Preview(msgspec.Struct, frozen=True):
    """The whole of a search as its configuration has it, if no trial fails.

    With `may_end_early` a rule of `searcher.stop` may end it before.
    """

    searcher: str
    unit: str | None
    trials: int | None  # None: a custom method decides
    concurrency: int
    total_units: int | None
    rows: list[Row]
    brackets: list[BracketRow]
    may_end_early: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The preview as plain data, fit for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def preview(config: Mapping[str, Any]) -> Preview:
    """The preview of a resolved configuration, as plain data."""
    search = Search(config)
    method = search.method
    rows, brackets, trials, total = [], [], None, None
    if isinstance(method, Halving):
        # Stopping lets the first one at a rung go on; promotion waits for `divisor` of them.
        least = 0 if method.raises_targets else 1
        rows = _halving_rows(method.brackets, method.divisor, least)
        brackets = [
            BracketRow(list(plan.units), plan.max_trials, min(plan.concurrency, plan.max_trials))
            for plan in method.brackets
        ]
        trials, total = _sums(rows)
    elif isinstance(method, PBT):
        rows, trials, total = _pbt_rows(method)
    elif isinstance(method, IndependentTrials):
        rows = [Row(method.max_trials, method.target_length)]
        trials, total = _sums(rows)
    return Preview(
        searcher=search.name,
        unit=search.unit or search.time_metric,
        trials=trials,
        concurrency=search.concurrency,
        total_units=total,
        rows=rows,
        brackets=brackets,
        may_end_early=search.stop_rule is not None,
    )


def shortfall(seen: Preview) -> str | None:
    """A warning that the trials are too few for the rungs: none is sure to reach the top."""
    top = max((bracket.rungs[-1] for bracket in seen.brackets), default=0)
    if not seen.rows or (seen.rows[-1].units or 0) >= top:
        return None
    return (
        f"searcher: {counted(seen.trials or 0, 'trial')} can't fill this number of rungs: none is"
        f" sure to be promoted to the last one, at {top} {seen.unit or 'units'}"
    )


def _sums(rows: Sequence[Row]) -> tuple[int, int | None]:
    trials = sum(row.trials for row in rows)
    units = [row.units * row.trials for row in rows if row.units is not None]
    return trials, sum(units) if len(units) == len(rows) else None


def _halving_rows(brackets: Sequence[BracketPlan], divisor: float, least: int) -> list[Row]:
    """On each rung all but 1/divisor of those that came stay; rungs at one length are one row."""
    staying: Counter[int] = Counter()
    for plan in brackets:
        left = plan.max_trials
        for units in plan.units[:-1]:
            going_on = max(int(left / divisor), least)
            staying[units] += left - going_on
            left = going_on
        staying[plan.units[-1]] += left
    return [Row(staying[units], units) for units in sorted(staying) if staying[units]]


def _pbt_rows(method: PBT) -> tuple[list[Row], int, int]:
    """Those given up after each round, and the population that comes to the end."""
    given_up = min(method.replaced, method.population - 1)
    rounds = range(1, method.rounds)
    rows = [Row(given_up, n * method.length) for n in rounds if given_up]
    rows.append(Row(method.population, method.rounds * method.length))
    trials = sum(row.trials for row in rows)
    return rows, trials, method.population * method.rounds * method.length
