"""How long a checkpoint of the Trainer's holds training up."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from benchmarks import measure as measuring
from benchmarks.bench import Bench
from benchmarks.peers import REPOSITORY
from benchmarks.report import Row

ROUNDS = 3


def measure(bench: Bench) -> Iterator[Row]:
    """Weights and momentum of 256 MB: beside one `torch.save` of the same states, synced."""
    pairs = [_run(bench) for _ in range(ROUNDS)]
    ours, by_hand = (min(column) for column in zip(*pairs, strict=True))
    yield Row(
        what="Trainer's checkpoint of 256 MB", ours=ours, unit="ms",
        anchor=by_hand, peer="torch.save, fsync", most_ratio=1.1,
    )  # fmt: skip


def _run(bench: Bench) -> tuple[float, float]:
    place = bench.folder()
    env = bench.environment(place) | {"PYTHONPATH": str(REPOSITORY)}
    spent = measuring.run([sys.executable, "-m", "benchmarks.loops.saving"], env, place)
    found = re.search(r"milliseconds ([\d.]+) ([\d.]+)", spent.output)
    assert found is not None, spent.output
    return float(found[1]), float(found[2])
