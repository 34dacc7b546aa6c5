"""A row of figures, whether it keeps its budget, and the table of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class Skip(Exception):
    """This machine can't measure that row; says why."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of ours beside an anchor's, and the budget: absolute, as a ratio, or both.

    `ratio` is ours / anchor.
    """

    what: str
    ours: float
    unit: str
    anchor: float | None = None
    peer: str = ""
    most: float | None = None
    least: float | None = None
    most_ratio: float | None = None
    least_ratio: float | None = None

    @property
    def ratio(self) -> float | None:
        """Ours in terms of the anchor."""
        return self.ours / self.anchor if self.anchor else None

    @property
    def kept(self) -> bool | None:
        """Whether the budget is kept; None where there is none."""
        ratio = self.ratio if self.ratio is not None else 0.0
        uppers = [(self.ours, self.most), (ratio, self.most_ratio)]
        lowers = [(self.ours, self.least), (ratio, self.least_ratio)]
        answers = [value <= bound for value, bound in uppers if bound is not None]
        answers += [value >= bound for value, bound in lowers if bound is not None]
        return all(answers) if answers else None

    @property
    def budget(self) -> str:
        """The budget in words."""
        parts = [
            (self.most, f"<= {_number(self.most)} {self.unit}"),
            (self.least, f">= {_number(self.least)} {self.unit}"),
            (self.most_ratio, f"<= {_number(self.most_ratio)} x"),
            (self.least_ratio, f">= {_number(self.least_ratio)} x"),
        ]
        return ", ".join(text for bound, text in parts if bound is not None)

    def cells(self) -> list[str]:
        """The row as the table shows it."""
        anchor = f"{_number(self.anchor)} {self.unit} ({self.peer})" if self.anchor else ""
        ratio = f"{self.ratio:.2f}" if self.ratio is not None else ""
        kept = {True: "yes", False: "NO", None: ""}[self.kept]
        return [self.what, f"{_number(self.ours)} {self.unit}", anchor, ratio, self.budget, kept]


HEADERS = ["what", "ours", "anchor", "ratio", "budget", "ok?"]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(rows: Iterable[Row]) -> str:
    """All rows, aligned."""
    cells = [HEADERS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADERS))]
    lines = [_line(line, widths) for line in cells]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]])


def _line(cells: list[str], widths: list[int]) -> str:
    return " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
