"""The simulator of a site beside the real thing: 100 trials that sleep on 4 nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.calls import available
from benchmarks.report import Row
from benchmarks.site import real
from benchmarks.site.model import Site, Workload, World
from benchmarks.site.outcome import outcome

NODES, SLOTS, TRIALS, SECONDS, FEW = 4, 4, 100, 3.0, 16
REAL = "real daemons"
NEAR = {"most_ratio": 1.2, "least_ratio": 0.8}


def measure(bench: Bench) -> Iterator[Row]:
    """What the simulation says, in terms of what was seen."""
    before = real.neighbours()
    seen = real.run(bench, TRIALS, NODES * SLOTS, SECONDS)
    others = (before + real.neighbours()) / 2
    world = simulated(others, TRIALS)
    found = outcome(world)
    what = f"simulated: {TRIALS} trials of {SECONDS:g} s on {NODES} nodes"
    for figure, unit, said, was in (
        ("until all have ended", "s", found.makespan, seen.makespan),
        ("start to first line", "s", found.first_line, seen.median_first_line),
        ("asked of slurmctld", "questions", float(found.questions), float(seen.questions)),
    ):
        yield Row(what=f"{what}, {figure}", ours=said, unit=unit, anchor=was, peer=REAL, **NEAR)
    if available():
        log = bench.folder() / "strace"
        with real.watched(bench, log):
            real.run(bench, FEW, NODES * SLOTS, 1.0)
        calls = real.path_calls(log, bench.cluster.layout.shared)
        said = simulated(others, FEW).metadata.asked
        yield Row(
            what=f"simulated: {FEW} trials, path calls", ours=said, unit="calls",
            anchor=calls, peer=REAL, **NEAR,
        )  # fmt: skip


def simulated(others: float, trials: int) -> World:
    """The same on a site like this machine: its disk answers at once, its nodes share its cores."""
    site = Site(
        nodes=NODES, slots=SLOTS, shared_cores=os.cpu_count() or 1, neighbours=others,
        metadata_rate=1e6, metadata_latency=5e-6,
        bandwidth=1e12, node_bandwidth=1e12, starts=100.0, start_seconds=0.05,
    )  # fmt: skip
    load = Workload(
        trials=trials, minutes=SECONDS / 60, spread=0, checkpoint_bytes=0, top=0, listings=0
    )
    world = World(site, load)
    world.run()
    return world
