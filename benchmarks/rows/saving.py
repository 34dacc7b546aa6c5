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
    runs = [(_run(bench, "foreground"), _run(bench, "background")) for _ in range(ROUNDS)]
    by_hand = measuring.Rounds(tuple(foreground[1] for foreground, _ in runs))
    for place, held, budget in (
        ("", tuple(foreground[0] for foreground, _ in runs), 1.05),
        (" in the background", tuple(background[0] for _, background in runs), 0.15),
    ):
        yield Row(
            what=f"Trainer's checkpoint of 256 MB{place}", ours=measuring.Rounds(held), unit="ms",
            anchor=by_hand, peer="torch.save, fsync", most_ratio=budget,
        )  # fmt: skip


def _run(bench: Bench, where: str) -> tuple[float, float]:
    """How long the Trainer's checkpoint and one by hand hold training up."""
    place = bench.folder()
    env = bench.environment(place) | {"PYTHONPATH": str(REPOSITORY)}
    spent = measuring.run([sys.executable, "-m", "benchmarks.loops.saving", where], env, place)
    found = re.search(r"milliseconds ([\d.]+) ([\d.]+)", spent.output)
    assert found is not None, spent.output
    return float(found[1]), float(found[2])
