"""The Trainer's loop around DeepSpeed's engine beside the same loop by hand, and Determined's."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.peers import REPOSITORY, python_with_peers
from benchmarks.report import Row, Skip
from benchmarks.training import microseconds
from tests.light import LIGHT

OURS, DETERMINED = "detslurm", "Determined"


def measure(bench: Bench) -> Iterator[Row]:
    """A micro-batch of about 2 ms, in batches of two, and what a loop adds to one that is little
    more than DeepSpeed's own work.

    Determined trains on the CPU, too, once its demand for a GPU is taken out. The budget is wider
    than that of the other trainer: engines leave little to a loop.
    """
    if importlib.util.find_spec("deepspeed") is None:
        raise Skip("DeepSpeed is not installed")
    place = bench.folder()
    path = {"PYTHONPATH": f"{LIGHT['PYTHONPATH']}:{REPOSITORY}"}
    env = bench.environment(bench.folder()) | LIGHT | path
    steps = {OURS: _argv(sys.executable, "heavy", OURS)}
    heavy = microseconds(steps, env, place, processes=1, rounds=4)[OURS]
    yield Row(
        what="DeepSpeed: overhead per micro-batch", ours=heavy.loop / 1e3, unit="ms",
        anchor=heavy.by_hand / 1e3, peer="by hand", most_ratio=1.03,
    )  # fmt: skip
    steps = {
        OURS: _argv(sys.executable, "light", OURS),
        DETERMINED: _argv(python_with_peers(), "light", DETERMINED),
    }
    light = microseconds(steps, env, place, processes=1, rounds=3)
    overhead = {name: took.loop - took.by_hand for name, took in light.items()}
    yield Row(
        what="DeepSpeed: what the loop adds", ours=overhead[OURS], unit="us",
        anchor=overhead[DETERMINED], peer=DETERMINED, most_ratio=1,
    )  # fmt: skip


def _argv(python: str | Path, size: str, name: str) -> tuple[str, ...]:
    package = "determined" if name == DETERMINED else OURS
    return str(python), "-m", "benchmarks.loops.deepspeed_trial", size, package
