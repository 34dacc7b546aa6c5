"""`detslurm --help`: what every command pays before it does anything."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.calls import trace
from benchmarks.measure import interleaved, run
from benchmarks.report import Row


def measure(bench: Bench) -> Iterator[Row]:
    """Its time beside a bare import of click, and its calls beside a bare Python's."""
    environment = bench.environment(bench.folder())
    ours = ["detslurm", "--help"]
    peer = [sys.executable, "-c", "import click"]
    bare = [sys.executable, "-c", "pass"]

    def seconds(argv: list[str]) -> float:
        return run(argv, environment).seconds

    mine, other = interleaved(lambda: seconds(ours), lambda: seconds(peer), rounds=9)
    yield Row(
        what="detslurm --help", ours=1e3 * mine, unit="ms",
        anchor=1e3 * other, peer="python -c 'import click'", most=120,
    )  # fmt: skip
    yield Row(
        what="detslurm --help", ours=trace(ours, environment).paths, unit="path calls",
        anchor=trace(bare, environment).paths, peer="python -c pass", most=900,
    )  # fmt: skip
