"""The Trainer's loop around DeepSpeed's engine beside the same loop by hand."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks import measure as measuring
from benchmarks.bench import Bench
from benchmarks.peers import REPOSITORY
from benchmarks.report import Row, Skip
from benchmarks.rows.trainer import microseconds_of


def measure(bench: Bench) -> Iterator[Row]:
    """A micro-batch of about 2 ms, in batches of two. Determined's trainer is no peer here: it
    wants a GPU."""
    if importlib.util.find_spec("deepspeed") is None:
        raise Skip("DeepSpeed is not installed")
    place = bench.folder()
    env = bench.environment(bench.folder()) | {"PYTHONPATH": str(REPOSITORY)}
    loops = [partial(_milliseconds, name, env, place) for name in ("trial", "plain")]
    # Whole runs differ by more than the budget allows, so many are made.
    ours, by_hand = measuring.interleaved(*loops, rounds=10)
    yield Row(
        what="DeepSpeed: overhead per micro-batch", ours=ours, unit="ms",
        anchor=by_hand, peer="by hand", most_ratio=1.03,
    )  # fmt: skip


def _milliseconds(name: str, env: dict[str, str], place: Path) -> float:
    argv = [sys.executable, "-m", f"benchmarks.loops.deepspeed_{name}", "heavy"]
    return microseconds_of(argv, env, place) / 1e3
