"""Simulate sites of all sizes, for docs/scale.md: its pictures, and its tables on stdout.

Run it in the repository: python scripts/scale.py
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from benchmarks.site.decisions import FileServer, crowd  # noqa: E402
from benchmarks.site.model import MINUTE, Site, Workload  # noqa: E402
from benchmarks.site.outcome import simulate  # noqa: E402

IMAGES = REPOSITORY / "docs" / "images"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 70, 170, 20, 46
COLORS = ("#1a6fc2", "#c2571a", "#2a8f4d", "#8a4dc2", "#6b6b6b")
SITE = Site(nodes=1000, slots=4)
NODES = (1, 3, 10, 30, 100, 300, 1000)
WORKERS = (10, 30, 100, 300, 1000, 2000)
TRIALS = (100, 1000, 10_000, 100_000)
TORCH = 20_000.0
"""Path calls of `import torch`."""
ARCHIVE = 5e9
"""Bytes of an environment with torch for GPUs."""

Line = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Picture:
    """Lines over logarithmic axes.

    Attributes:
        name: Of the file.
        across: What is on the horizontal axis.
        unit: Of the vertical axis.
        lines: By what they are called.
    """

    name: str
    across: str
    unit: str
    lines: Mapping[str, Line]


def starts() -> Picture:
    """Seconds until all slots train, when all start at once."""

    def line(imports: float, staged: float = 0.0, **changes: float) -> Line:
        site = replace(SITE, **changes)  # type: ignore[arg-type]
        return [
            (n, simulate(replace(site, nodes=n), once(n, imports, staged)).ready) for n in NODES
        ]

    lines = {
        "no imports": line(0),
        "import torch": line(TORCH),
        "torch, 100,000 calls/s": line(TORCH, metadata_rate=100_000.0),
        "torch, nine in ten cached": line(TORCH, cached=0.9),
        "torch, staged (5 GB)": line(TORCH, ARCHIVE),
    }
    return Picture("scale-start", "nodes that start four trials each at once", "s", lines)


def once(nodes: int, imports: float = 0.0, staged: float = 0.0) -> Workload:
    """A trial for each slot."""
    trials = nodes * SITE.slots
    return Workload(
        trials=trials, imports=imports, staged_bytes=staged, minutes=10, top=0, listings=0
    )


def loads() -> Picture:
    """Percent of what metadata server and slurmctld can do, on average, while slots are full."""
    lines: dict[str, Line] = {}
    for minutes in (1, 10, 60):
        found = [(n, simulate(replace(SITE, nodes=n), steady(n, minutes))) for n in NODES]
        name = f"{minutes} min a trial"
        lines[f"metadata, {name}"] = [(n, 100 * one.metadata.utilisation) for n, one in found]
        if minutes == 1:
            lines[f"slurmctld, {name}"] = [
                (n, 100 * one.controller.utilisation) for n, one in found
            ]
    return Picture("scale-load", "nodes that are busy with trials", "%", lines)


def steady(nodes: int, minutes: float) -> Workload:
    """Four trials for each slot, one after the other; one user looks."""
    return Workload(trials=4 * nodes * SITE.slots, minutes=minutes, top=0)


def decisions() -> Picture:
    """Seconds of a search's decisions: the log's own code, with so many workers."""
    server = FileServer(SITE.metadata_latency, 1 / SITE.metadata_rate)
    at_once = [(n, crowd(n, decisions=1, server=server)) for n in WORKERS]
    reporting = [(n, crowd(n, decisions=3, think=MINUTE, server=server)) for n in WORKERS]
    for name, found in (("at once", at_once), ("one a minute", reporting)):
        each = (f"{n:,}: {one.calls.total() / len(one.waits):.1f}" for n, one in found)
        print(f"calls of a decision, {name}", ", ".join(each))
    lines = {
        "at once, slowest": [(n, one.wait(1.0)) for n, one in at_once],
        "at once, median": [(n, one.wait(0.5)) for n, one in at_once],
        "one a minute, slowest": [(n, one.wait(1.0)) for n, one in reporting],
        "one a minute, median": [(n, one.wait(0.5)) for n, one in reporting],
    }
    return Picture("scale-search", "workers of a search", "s", lines)


def tables() -> Iterator[str]:
    """Rows for the page."""
    yield "trials | hours | metadata mean, % | slurmctld mean, % | peak calls/s | questions/s"
    for trials in TRIALS:
        one = simulate(SITE, Workload(trials=trials, top=0))
        yield (
            f"{trials:,} | {one.makespan / 3600:.2f} | {100 * one.metadata.utilisation:.2g} | "
            f"{100 * one.controller.utilisation:.2g} | {one.metadata.peak:,.0f} | "
            f"{one.questions / one.makespan:.2g}"
        )
    yield "open detslurm top at 1,000 nodes | metadata % | slurmctld %"
    for top in (1, 10, 100):
        one = simulate(SITE, Workload(trials=10_000, top=top))
        yield (
            f"{top} | {100 * one.metadata.utilisation:.2g} | {100 * one.controller.utilisation:.2g}"
        )


class Axis:
    """A logarithmic axis."""

    def __init__(self, values: Iterator[float], begin: float, end: float) -> None:
        found = [max(value, 1e-3) for value in values]
        self._low = 10 ** math.floor(math.log10(min(found)))
        self._high = 10 ** math.ceil(math.log10(max(found)) - 1e-9)
        self._begin, self._end = begin, end

    @property
    def ticks(self) -> list[float]:
        """Powers of ten."""
        first, last = round(math.log10(self._low)), round(math.log10(self._high))
        return [float(10**n) for n in range(first, last + 1)]

    def __call__(self, value: float) -> float:
        share = math.log(max(value, self._low) / self._low) / math.log(self._high / self._low)
        return self._begin + share * (self._end - self._begin)


def drawn(picture: Picture) -> Iterator[str]:
    """The picture, line by line."""
    x = Axis((n for line in picture.lines.values() for n, _ in line), LEFT, WIDTH - RIGHT)
    y = Axis((v for line in picture.lines.values() for _, v in line), HEIGHT - BOTTOM, TOP)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12" fill="#444">'
    )
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    for tick in y.ticks:
        yield f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
        text = f"{tick:g} {picture.unit}"
        yield f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{text}</text>'
    for tick in x.ticks:
        yield f'<text x="{x(tick):.1f}" y="{HEIGHT - 26}" text-anchor="middle">{tick:,.0f}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{picture.across}</text>'
    labels: list[float] = []
    lines = sorted(picture.lines.items(), key=lambda line: -line[1][-1][1])  # labels move down only
    for (name, line), color in zip(lines, COLORS, strict=False):
        points = " ".join(f"{x(n):.1f},{y(value):.1f}" for n, value in line)
        yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
        at = y(line[-1][1]) + 4
        while any(abs(at - other) < 14 for other in labels):
            at += 1
        labels.append(at)
        yield f'<text x="{x(line[-1][0]) + 8:.1f}" y="{at:.1f}" fill="{color}">{name}</text>'
    yield "</svg>"


def main() -> int:
    """Simulate, print and draw."""
    for make in (starts, loads, decisions):
        picture = make()
        for name, line in picture.lines.items():
            print(picture.name, name, ", ".join(f"{n:,.0f}: {v:.3g}" for n, v in line), flush=True)
        (IMAGES / f"{picture.name}.svg").write_text("\n".join(drawn(picture)) + "\n")
    print("\n".join(tables()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
