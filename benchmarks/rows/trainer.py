"""The Trainer's loop beside the same loop by hand, and beside other trainers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks import measure as measuring
from benchmarks.bench import Bench
from benchmarks.peers import REPOSITORY, python_with_peers
from benchmarks.report import Row

OURS, BY_HAND = "detslurm", "by hand"
LOOPS = {
    BY_HAND: ("plain",),
    OURS: ("trial", "detslurm"),
    "Determined": ("trial", "determined"),
    "Lightning": ("lightning_loop",),
    "Accelerate": ("accelerate_loop",),
}


def measure(bench: Bench) -> Iterator[Row]:
    """A batch whose step takes about 2 ms, and what a loop adds to one that is all but empty."""
    peers = python_with_peers()
    # Determined copies the working directory into its checkpoints, which are in the home.
    place = bench.folder()
    env = bench.environment(bench.folder()) | {"PYTHONPATH": str(REPOSITORY)}
    heavy = _microseconds(partial(_run, peers, place, env, "heavy"), [BY_HAND, OURS])
    yield Row(
        what="Trainer, a batch of 2 ms", ours=heavy[OURS] / 1e3, unit="ms",
        anchor=heavy[BY_HAND] / 1e3, peer=BY_HAND, most_ratio=1.03,
    )  # fmt: skip
    light = _microseconds(partial(_run, peers, place, env, "light"), list(LOOPS))
    overhead = {name: took - light[BY_HAND] for name, took in light.items() if name != BY_HAND}
    ours = overhead.pop(OURS)
    for peer, theirs in overhead.items():
        yield Row(
            what="Trainer's overhead a batch", ours=ours, unit="us",
            anchor=theirs, peer=peer, most=60, most_ratio=0.3 if peer == "Determined" else 1,
        )  # fmt: skip


def _microseconds(run: Callable[[str], float], names: list[str]) -> dict[str, measuring.Rounds]:
    # Whole runs differ by more than the budgets allow, so many are made.
    rounds = measuring.interleaved(*(partial(run, name) for name in names), rounds=10)
    return dict(zip(names, rounds, strict=True))


def _run(peers: Path, place: Path, env: dict[str, str], size: str, name: str) -> float:
    python = sys.executable if name in (OURS, BY_HAND) else str(peers)
    loop, *words = LOOPS[name]
    return microseconds_of([python, "-m", f"benchmarks.loops.{loop}", size, *words], env, place)


def microseconds_of(argv: Sequence[str], env: Mapping[str, str], place: Path) -> float:
    """What a loop of `benchmarks.loops` prints."""
    spent = measuring.run(argv, env, place)
    found = re.search(r"microseconds ([\d.]+)", spent.output)
    assert found is not None, spent.output
    return float(found[1])
