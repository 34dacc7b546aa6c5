"""The picture of a comparison: the mean rank of each method while the budget is spent, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

Line = Sequence[tuple[float, float]]
"""Parts of the budget, and the mean rank there."""

WIDTH, PANEL, GAP, LEFT, TOP, HEIGHT, LEGEND = 900, 250, 42, 44, 34, 250, 30
LEAST = 0.01
COLORS = (
    "#1f6fd0", "#0b9e8a", "#7a4fd0", "#c2571a", "#b8860b", "#c23b6b", "#5a7d1a", "#8a6d5a",
    "#4a8fb0", "#a04fb0", "#7f7f7f", "#d08a6f",
)  # fmt: skip
STYLE = (
    "<style>.paper{fill:#fff}.ink{fill:#333}.grid{stroke:#ddd}"
    "@media(prefers-color-scheme:dark){.paper{fill:#1c1f24}.ink{fill:#d5d8dc}"
    ".grid{stroke:#3a3f46}}</style>"
)


def drawn(panels: Mapping[str, Mapping[str, Line]], ours: Sequence[str]) -> Iterator[str]:
    """Yield the picture, line by line: a panel beside the other, ours thick, others dashed.

    Args:
        panels: The lines of the methods by the panel's title.
        ours: Which methods are detslurm's.
    """
    methods = list(next(iter(panels.values())))
    rows = math.ceil(len(methods) / 4)
    height = HEIGHT + TOP + LEGEND + 20 * rows + 10
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' font-family="sans-serif" font-size="12">{STYLE}'
    )
    yield f'<rect width="{WIDTH}" height="{height}" class="paper"/>'
    for number, (title, lines) in enumerate(panels.items()):
        yield from _panel(LEFT + number * (PANEL + GAP), title, lines, ours)
    for number, method in enumerate(methods):
        left = LEFT + number % 4 * 212
        top = TOP + HEIGHT + LEGEND + 12 + number // 4 * 20
        yield f'<path d="M{left} {top}h24" {_stroke(number, method in ours)}/>'
        yield f'<text x="{left + 30}" y="{top + 4}" class="ink">{method}</text>'
    yield "</svg>"


def _panel(
    left: float, title: str, lines: Mapping[str, Line], ours: Sequence[str]
) -> Iterator[str]:
    ranks = [rank for line in lines.values() for _, rank in line]
    low, high = math.floor(min(ranks)), math.ceil(max(ranks))

    def place(share: float, rank: float) -> str:
        x = left + (PANEL - 10) * (1 - math.log(share) / math.log(LEAST))
        return f"{x:.1f},{TOP + HEIGHT * (rank - low) / (high - low):.1f}"

    yield f'<text x="{left}" y="{TOP - 14}" class="ink" font-weight="bold">{title}</text>'
    for rank in range(low, high + 1):
        y = TOP + HEIGHT * (rank - low) / (high - low)
        yield f'<path d="M{left} {y:.1f}h{PANEL - 10}" class="grid"/>'
        yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" class="ink">{rank}</text>'
    for share in (0.01, 0.05, 0.25, 1.0):
        x = place(share, low).split(",")[0]
        yield (
            f'<text x="{x}" y="{TOP + HEIGHT + 18}" text-anchor="middle" class="ink">'
            f"{100 * share:g} %</text>"
        )
    for number, (method, line) in enumerate(lines.items()):
        points = " ".join(place(share, rank) for share, rank in line)
        yield f'<polyline points="{points}" {_stroke(number, method in ours)}/>'


def _stroke(number: int, ours: bool) -> str:
    color = COLORS[number % len(COLORS)]
    shape = 'stroke-width="3"' if ours else 'stroke-width="1.6" stroke-dasharray="5 3"'
    return f'fill="none" stroke="{color}" {shape}'
