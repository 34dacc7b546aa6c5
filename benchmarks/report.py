"""A row of figures, whether it keeps its budget, and the table of all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.measure import Rounds


class Skip(Exception):
    """This machine can't measure that row; says why."""


class Last(NamedTuple):
    """What an earlier run found for a row: ours, and in terms of the anchor where it had one."""

    figure: float
    ratio: float | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of ours beside an anchor's, and the budget: absolute, as a ratio, or both.

    `ratio` is ours / anchor. Of what was measured in rounds the median counts, and of two figures
    measured in the same rounds the median of their ratios.
    """

    what: str
    ours: Rounds | float
    unit: str
    anchor: Rounds | float | None = None
    peer: str = ""
    most: float | None = None
    least: float | None = None
    most_ratio: float | None = None
    least_ratio: float | None = None

    @property
    def name(self) -> str:
        """What tells it from all other rows, in this run and in another."""
        return f"{self.what}, {self.unit}" + (f" beside {self.peer}" if self.peer else "")

    @property
    def figure(self) -> float:
        """Ours, as one number."""
        return _median(self.ours)

    @property
    def ratios(self) -> Rounds | float | None:
        """Ours in terms of the anchor, in each round where both have them."""
        ours, anchor = self.ours, self.anchor
        if not anchor:
            return None
        if not isinstance(ours, Rounds):
            return ours / _median(anchor)
        if isinstance(anchor, Rounds) and len(ours.values) != len(anchor.values):
            return ours / anchor.median
        return ours / anchor

    @property
    def ratio(self) -> float | None:
        """Ours in terms of the anchor, as one number."""
        return None if self.ratios is None else _median(self.ratios)

    @property
    def kept(self) -> bool | None:
        """Whether the budget is kept; None where there is none."""
        ratio = self.ratio if self.ratio is not None else 0.0
        uppers = [(self.figure, self.most), (ratio, self.most_ratio)]
        lowers = [(self.figure, self.least), (ratio, self.least_ratio)]
        answers = [value <= bound for value, bound in uppers if bound is not None]
        answers += [value >= bound for value, bound in lowers if bound is not None]
        return all(answers) if answers else None

    @property
    def budget(self) -> str:
        """The budget in words."""
        parts = [
            (self.most, f"<= {number(self.most)} {self.unit}"),
            (self.least, f">= {number(self.least)} {self.unit}"),
            (self.most_ratio, f"<= {number(self.most_ratio)} x"),
            (self.least_ratio, f">= {number(self.least_ratio)} x"),
        ]
        return ", ".join(text for bound, text in parts if bound is not None)

    def cells(self, last: Last | None = None) -> list[str]:
        """The row as the table shows it, beside what an earlier run found."""
        anchor = f"{_spread(self.anchor)} {self.unit} ({self.peer})" if self.anchor else ""
        ratio = "" if self.ratios is None else _spread(self.ratios)
        kept = {True: "yes", False: "NO", None: ""}[self.kept]
        ours = f"{_spread(self.ours)} {self.unit}"
        return [self.what, ours, anchor, ratio, self._change(last), self.budget, kept]

    def _change(self, last: Last | None) -> str:
        """The last ratio where both have one, else the last figure, and how far it is from it."""
        if last is None:
            return ""
        before, now = last.figure, self.figure
        if last.ratio is not None and self.ratio is not None:
            before, now = last.ratio, self.ratio
        if before == now:
            return f"{number(before)} (=)"
        far = f"{100 * (now - before) / abs(before):+.0f} %" if before else "from nothing"
        return f"{number(before)} ({far})"


HEADERS = ["what", "ours", "anchor", "ratio", "last time", "budget", "ok?"]


def _median(figure: Rounds | float) -> float:
    return figure.median if isinstance(figure, Rounds) else figure


def _spread(figure: Rounds | float) -> str:
    """The median, and between what half of the rounds were."""
    if not isinstance(figure, Rounds) or len(figure.values) == 1:
        return number(_median(figure))
    low, high = map(number, figure.quartiles)
    return f"{number(figure.median)} [{low}, {high}]"


def number(value: float | None) -> str:
    """A figure as tables show it."""
    if value is None:
        return ""
    if math.isfinite(value) and (abs(value) >= 1000 or value == int(value)):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(rows: Iterable[Row], last: Mapping[str, Last]) -> str:
    """All rows, aligned, each beside its last time."""
    cells = [HEADERS, *(row.cells(last.get(row.name)) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADERS))]
    lines = [_line(line, widths) for line in cells]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]])


def _line(cells: list[str], widths: list[int]) -> str:
    return " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
