"""Searches: simulated, decided upon, opened, and crowded by workers; Optuna beside them."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.crowd import measured, rate, wait
from benchmarks.latency import counted
from benchmarks.measure import interleaved, timed
from benchmarks.report import Row
from benchmarks.searches import LongSearch, OptunasSearch
from detslurm.searcher.simulation import simulate

OPTUNA = "Optuna's journal"
FEW, MANY, MOST = 100, 10_000, 20_000

ASHA = {
    "searcher": {
        "name": "adaptive_asha", "metric": "loss", "max_length": {"batches": 1000}, "divisor": 4,
        "max_trials": MANY, "max_concurrent_trials": 256,
    },
    "hyperparameters": {"x": {"type": "double", "minval": 0, "maxval": 1}},
    "reproducibility": {"experiment_seed": 1},
}  # fmt: skip

CROWD, SECONDS, LATENCY = 200, 5.0, 0.002


def measure(bench: Bench) -> Iterator[Row]:
    """Seconds of a simulation; milliseconds and calls of a decision; verdicts of a crowd."""
    yield Row(
        what=f"simulate adaptive_asha with {MANY:,} trials",
        ours=timed(lambda: simulate(ASHA, 256)), unit="s", most=10,
    )  # fmt: skip
    yield from _decisions(bench)
    yield from _opening(bench)
    yield from _crowds(bench)


def _decisions(bench: Bench) -> Iterator[Row]:
    few, many = (LongSearch(bench.folder(), trials) for trials in (FEW, MANY))
    peer = OptunasSearch(bench.folder(), MANY)
    at_few, at_many, theirs = interleaved(
        lambda: few.decide(200), lambda: many.decide(200), lambda: peer.decide(30)
    )
    what = f"decision after {MANY:,} trials"
    yield Row(
        what=what, ours=1 / at_many, unit="/s", anchor=1 / theirs, peer=OPTUNA, least_ratio=10
    )  # fmt: skip
    yield Row(
        what=what, ours=1e3 * at_many, unit="ms",
        anchor=1e3 * at_few, peer=f"after {FEW}", most_ratio=2,
    )  # fmt: skip
    calls = counted(lambda: many.decide(160))
    paths = sum(count for name, count in calls.items() if name != "fsync")
    yield Row(what=what, ours=paths / 160, unit="path calls", most=8)
    yield Row(what=what, ours=calls["fsync"] / 160, unit="fsync", most=1)


def _opening(bench: Bench) -> Iterator[Row]:
    ours, theirs = LongSearch(bench.folder(), MOST), OptunasSearch(bench.folder(), MOST)
    seconds, peer = interleaved(lambda: timed(ours.open), lambda: timed(theirs.open), rounds=3)
    yield Row(
        what=f"open a search of {MOST:,} trials", ours=seconds, unit="s",
        anchor=peer, peer=OPTUNA, most=0.3,
    )  # fmt: skip


def _crowds(bench: Bench) -> Iterator[Row]:
    ours, theirs = (_crowd(bench, whose) for whose in ("ours", "optuna"))
    what = f"{CROWD} workers at once, {1e3 * LATENCY:.0f} ms a call"
    yield Row(
        what=what, ours=rate(ours), unit="verdicts/s",
        anchor=rate(theirs), peer=OPTUNA, least_ratio=8,
    )  # fmt: skip
    for name, share in (("median", 0.5), ("p99", 0.99), ("longest", 1.0)):
        yield Row(
            what=f"{what}: {name} wait", ours=wait(ours, share), unit="s",
            anchor=wait(theirs, share), peer=OPTUNA, most_ratio=1,
        )  # fmt: skip


def _crowd(bench: Bench, whose: str) -> dict[str, object]:
    return measured(whose, bench.folder(), CROWD, SECONDS, LATENCY)
