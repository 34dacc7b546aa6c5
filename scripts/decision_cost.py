"""Draw docs/decision-cost.svg: what a decision of a search costs, the longer the search is.

Run it in the repository: python scripts/decision_cost.py
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "decision-cost.svg"
TRIALS = (100, 300, 1000, 3000, 10_000)
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 60, 150, 20, 46
LOWEST, HIGHEST = 0.1, 100.0

Line = list[tuple[int, float]]


def measured() -> dict[str, Line]:
    """Milliseconds of a decision by the number of trials that are over."""
    sys.path.insert(0, str(REPOSITORY))
    from benchmarks.bench import Bench
    from benchmarks.measure import interleaved
    from benchmarks.searches import LongSearch, OptunasSearch

    with Bench() as bench:
        theirs = [OptunasSearch(bench.folder(), trials) for trials in TRIALS]
        ours = [LongSearch(bench.folder(), trials) for trials in TRIALS]
        # All in turns: what else the machine does falls on all of them alike.
        contenders = [partial(search.decide, 20) for search in theirs]
        contenders += [partial(search.decide, 100) for search in ours]
        medians = [1e3 * seconds.median for seconds in interleaved(*contenders, rounds=9)]
    return {
        "Optuna's journal": list(zip(TRIALS, medians[: len(TRIALS)], strict=True)),
        "detslurm": list(zip(TRIALS, medians[len(TRIALS) :], strict=True)),
    }


def x(trials: float) -> float:
    """Where a number of trials is, on a logarithmic axis."""
    share = math.log(trials / TRIALS[0]) / math.log(TRIALS[-1] / TRIALS[0])
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def y(milliseconds: float) -> float:
    """Where a duration is, on a logarithmic axis."""
    share = math.log(milliseconds / LOWEST) / math.log(HIGHEST / LOWEST)
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def drawn(lines: dict[str, Line]) -> Iterator[str]:
    """The picture, line by line."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12" fill="#444">'
    )
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    for tick in (0.1, 1, 10, 100):
        at = y(tick)
        yield f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{tick:g} ms</text>'
    for trials in TRIALS:
        yield f'<text x="{x(trials):.1f}" y="{HEIGHT - 26}" text-anchor="middle">{trials:,}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">trials that are over</text>'
    for (name, line), color in zip(lines.items(), ("#c2571a", "#1a6fc2"), strict=True):
        points = " ".join(f"{x(trials):.1f},{y(ms):.1f}" for trials, ms in line)
        yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
        for trials, ms in line:
            yield f'<circle cx="{x(trials):.1f}" cy="{y(ms):.1f}" r="3" fill="{color}"/>'
        trials, ms = line[-1]
        text = f"{name}: {ms:.2g} ms"
        yield f'<text x="{x(trials) + 8:.1f}" y="{y(ms) + 4:.1f}" fill="{color}">{text}</text>'
    yield "</svg>"


def main() -> int:
    """Measure and draw."""
    lines = measured()
    for name, line in lines.items():
        print(name, ", ".join(f"{trials:,}: {ms:.2f} ms" for trials, ms in line))
    PAGE.write_text("\n".join(drawn(lines)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
