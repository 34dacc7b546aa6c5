"""Batch inference that goes on after a preemption, beside a plain loop."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from benchmarks import measure as measuring
from benchmarks.bench import Bench
from benchmarks.peers import REPOSITORY
from benchmarks.report import Row
from tests.light import LIGHT


def measure(bench: Bench) -> Iterator[Row]:
    """50 batches of about 20 ms, a file for each, and their commit: the best of six rounds."""
    place = bench.folder()
    env = bench.environment(place) | LIGHT | {"PYTHONPATH": f"{LIGHT['PYTHONPATH']}:{REPOSITORY}"}
    spent = measuring.run([sys.executable, "-m", "benchmarks.loops.batch_inference"], env, place)
    found = re.search(r"milliseconds ([\d.]+) ([\d.]+)", spent.output)
    assert found is not None, spent.output
    yield Row(
        what="torch_batch_process, a batch", ours=float(found[1]), unit="ms",
        anchor=float(found[2]), peer="a plain loop", most_ratio=1.05,
    )  # fmt: skip
