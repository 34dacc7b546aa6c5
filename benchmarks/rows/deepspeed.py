"""The Trainer's loop around DeepSpeed's engine beside the same loop by hand."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.peers import REPOSITORY
from benchmarks.report import Row, Skip
from benchmarks.training import microseconds


def measure(bench: Bench) -> Iterator[Row]:
    """A micro-batch of about 2 ms, in batches of two. Determined's trainer is no peer here: it
    wants a GPU."""
    if importlib.util.find_spec("deepspeed") is None:
        raise Skip("DeepSpeed is not installed")
    env = bench.environment(bench.folder()) | {"PYTHONPATH": str(REPOSITORY)}
    loops = {
        name: [sys.executable, "-m", f"benchmarks.loops.deepspeed_{name}", "heavy"]
        for name in ("trial", "plain")
    }
    took = microseconds(loops, env, bench.folder(), processes=8, rounds=1)
    yield Row(
        what="DeepSpeed: overhead per micro-batch", ours=took["trial"] / 1e3, unit="ms",
        anchor=took["plain"] / 1e3, peer="by hand", most_ratio=1.03,
    )  # fmt: skip
