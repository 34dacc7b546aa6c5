"""The Trainer's loop beside the same loop by hand, and beside other trainers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.peers import REPOSITORY, python_with_peers
from benchmarks.report import Row
from benchmarks.training import microseconds

OURS = "detslurm"
LOOPS = {
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
    steps = {OURS: _argv(peers, "heavy", OURS)}
    heavy = microseconds(steps, env, place, processes=3, rounds=4)[OURS]
    yield Row(
        what="Trainer, a batch of 2 ms", ours=heavy.loop / 1e3, unit="ms",
        anchor=heavy.by_hand / 1e3, peer="by hand", most_ratio=1.03,
    )  # fmt: skip
    steps = {name: _argv(peers, "light", name) for name in LOOPS}
    light = microseconds(steps, env, place, processes=1, rounds=5)
    overhead = {name: took.loop - took.by_hand for name, took in light.items()}
    ours = overhead.pop(OURS)
    for peer, theirs in overhead.items():
        yield Row(
            what="Trainer's overhead a batch", ours=ours, unit="us",
            anchor=theirs, peer=peer, most=60, most_ratio=0.3 if peer == "Determined" else 1,
        )  # fmt: skip


def _argv(peers: Path, size: str, name: str) -> tuple[str, ...]:
    python = sys.executable if name == OURS else str(peers)
    loop, *words = LOOPS[name]
    return python, "-m", f"benchmarks.loops.{loop}", size, *words
