"""The simulator of a site beside the real thing: 100 trials that sleep on 4 nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

from benchmarks.bench import Bench
from benchmarks.calls import available
from benchmarks.report import Row
from benchmarks.site import real
from benchmarks.site.costs import Costs, kept
from benchmarks.site.measure import python_seconds
from benchmarks.site.model import Site, Workload, World
from benchmarks.site.outcome import outcome

NODES, SLOTS, TRIALS, SECONDS, FEW = 4, 4, 100, 3.0, 16
REAL = "real daemons"
NEAR = {"most_ratio": 1.2, "least_ratio": 0.8}


def measure(bench: Bench) -> Iterator[Row]:
    """What the simulation says, in terms of what was seen."""
    alone = real.run(bench, 4, slots=1, seconds=0.0).median_first_line  # one after the other
    # Before and after: how fast a machine is may change within the minute.
    python, neighbours = [python_seconds()], [real.neighbours()]
    seen = real.run(bench, TRIALS, NODES * SLOTS, SECONDS)
    python.append(python_seconds())
    neighbours.append(real.neighbours())
    machine = Machine(kept().on(mean(python)), alone, mean(neighbours))
    world = simulated(machine, TRIALS)
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
        said = simulated(machine, FEW).metadata.asked
        yield Row(
            what=f"simulated: {FEW} trials, path calls", ours=said, unit="calls",
            anchor=calls, peer=REAL, **NEAR,
        )  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """What a simulation has to know of this one.

    Attributes:
        costs: As they are here.
        alone: Seconds from a job's start to its first line where nothing else starts.
        neighbours: How many cores others keep busy.
    """

    costs: Costs
    alone: float
    neighbours: float


def simulated(machine: Machine, trials: int) -> World:
    """The same on a site like this machine: its disk answers at once, its nodes share its cores."""
    costs = machine.costs
    busy = costs.seconds.start + costs.seconds.slurm + costs.controller.job
    site = Site(
        nodes=NODES, slots=SLOTS, shared_cores=os.cpu_count() or 1, neighbours=machine.neighbours,
        metadata_rate=1e6, metadata_latency=5e-6,
        bandwidth=1e12, node_bandwidth=1e12, starts=100.0,
        start_seconds=max(machine.alone - busy, 0.0),
    )  # fmt: skip
    load = Workload(
        trials=trials, minutes=SECONDS / 60, spread=0, checkpoint_bytes=0, top=0, listings=0
    )
    world = World(site, load, costs)
    world.run()
    return world
