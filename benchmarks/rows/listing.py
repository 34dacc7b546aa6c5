"""`experiment list` over a thousand finished experiments, and a page of a hundred thousand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.bench import Bench
from benchmarks.calls import trace
from benchmarks.experiments import finished, indexed, kept
from benchmarks.measure import interleaved, peak_mb, run
from benchmarks.report import Row

COMMAND = ["detslurm", "experiment", "list"]
PAGE = [*COMMAND, "--limit", "20"]
BARE = ["detslurm", "--help"]
MANY = 100_000


def measure(bench: Bench) -> Iterator[Row]:
    """Warm time, calls and memory; the first listing folds everything once and is not counted."""
    folder = kept("finished-experiments", partial(finished, count=1000))
    environment = bench.environment(folder)
    run(COMMAND, environment)
    (seconds, other) = interleaved(
        lambda: run(COMMAND, environment).seconds, lambda: run(BARE, environment).seconds, rounds=5
    )
    what = "experiment list of 1,000 finished"
    yield Row(
        what=what, ours=1e3 * seconds, unit="ms",
        anchor=1e3 * other, peer="detslurm --help", most=500,
    )  # fmt: skip
    yield Row(what=what, ours=peak_mb(COMMAND, environment), unit="MB", most=100)
    total, start = trace(COMMAND, environment), trace(BARE, environment)
    yield Row(
        what=what, ours=len(total.under(folder)), unit="path calls in the store", most=200
    )  # fmt: skip
    yield Row(
        what=what, ours=total.paths, unit="path calls in all",
        anchor=start.paths, peer="detslurm --help",
    )  # fmt: skip
    yield from _page(bench)


def _page(bench: Bench) -> Iterator[Row]:
    """The newest of many; nothing may be read that grows with how many there are."""
    folder = kept("indexed-experiments", partial(indexed, count=MANY))
    environment = bench.environment(folder)
    (seconds, other) = interleaved(
        lambda: run(PAGE, environment).seconds, lambda: run(BARE, environment).seconds, rounds=5
    )
    what = f"experiment list --limit 20 of {MANY:,}"
    yield Row(
        what=what, ours=1e3 * seconds, unit="ms",
        anchor=1e3 * other, peer="detslurm --help", most_ratio=5,
    )  # fmt: skip
    yield Row(what=what, ours=peak_mb(PAGE, environment), unit="MB", most=100)
    calls = trace(PAGE, environment).under(folder)
    yield Row(what=what, ours=len(calls), unit="path calls in the store", most=20)
