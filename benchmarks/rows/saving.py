"""How long a checkpoint of the Trainer's holds training up."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator

from benchmarks import measure as measuring
from benchmarks.bench import Bench
from benchmarks.peers import REPOSITORY
from benchmarks.report import Row
from tests.light import LIGHT


def measure(bench: Bench) -> Iterator[Row]:
    """Weights and momentum of 256 MB: beside one `torch.save` of the same states, synced."""
    loops = {
        "": ("saving", "foreground"),
        " in the background": ("saving", "background"),
        ", DeepSpeed's in the background": ("deepspeed_saving",),
    }
    # What ranks of DeepSpeed do together, sealing among it, is done in the foreground.
    budgets = dict(zip(loops, (1.05, 0.15, 0.2), strict=True))
    if importlib.util.find_spec("deepspeed") is None:
        del loops[", DeepSpeed's in the background"]
    runs = {what: _run(bench, *loop) for what, loop in loops.items()}
    _, by_hand = runs[""]
    for what, (held, _) in runs.items():
        yield Row(
            what=f"Trainer's checkpoint of 256 MB{what}", ours=held, unit="ms",
            anchor=by_hand, peer="torch.save, fsync", most_ratio=budgets[what],
        )  # fmt: skip


def _run(bench: Bench, loop: str, *arguments: str) -> tuple[float, float]:
    """How long the Trainer's checkpoint and one by hand hold training up: the shortest of several,
    for whatever else the disk has to write only makes them longer."""
    place = bench.folder()
    env = bench.environment(place) | LIGHT | {"PYTHONPATH": f"{LIGHT['PYTHONPATH']}:{REPOSITORY}"}
    spent = measuring.run(
        [sys.executable, "-m", f"benchmarks.loops.{loop}", *arguments], env, place
    )
    found = re.search(r"milliseconds ([\d.]+) ([\d.]+)", spent.output)
    assert found is not None, spent.output
    return float(found[1]), float(found[2])
