"""What a simulation shows, in numbers and as a table."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from benchmarks.site.costs import Costs
from benchmarks.site.engine import Server
from benchmarks.site.model import Site, Workload, World

BUSY = 0.9
"""A server whose busiest second takes more of its capacity is said to be saturated."""


@dataclass(frozen=True)
class Load:
    """What one server had to do.

    Attributes:
        total: In all.
        mean: A second.
        peak: In the busiest second.
        utilisation: Of its capacity, in the mean.
        full: Seconds in which there was nothing left of its capacity.
    """

    total: float
    mean: float
    peak: float
    utilisation: float
    full: float


@dataclass(frozen=True)
class Outcome:
    """What a simulation shows; times are seconds.

    Attributes:
        makespan: From the submission to the end of the last trial.
        first_line: From a job's start to its user's first line, the median.
        last_first_line: The longest.
        storm: From the submission to the first line in all slots.
        ready: From the submission to the training in all slots.
        metadata: Calls with a path.
        controller: Seconds that slurmctld is busy.
        questions: That slurmctld was asked.
        starts: Jobs that Slurm starts.
        transfer: Bytes of checkpoints.
        decision: Of a search, in the median; 0 without one.
        last_decision: The longest.
        decisions: A second, in the mean.
        slowdown: Of training, by waiting for the store: 1 for none.
        first: What was saturated for the longest time; empty if nothing was.
        interrupted: Runs.
        lost: What was trained again.
    """

    makespan: float
    first_line: float
    last_first_line: float
    storm: float
    ready: float
    metadata: Load
    controller: Load
    questions: int
    starts: Load
    transfer: Load
    decision: float
    last_decision: float
    decisions: float
    slowdown: float
    first: str
    interrupted: int
    lost: float


def simulate(site: Site, workload: Workload, costs: Costs | None = None, seed: int = 0) -> Outcome:
    """Let a workload run on a site; the same seed gives the same outcome."""
    world = World(site, workload, costs, seed)
    world.run()
    return outcome(world)


def outcome(world: World) -> Outcome:
    """What a simulation that has run shows."""
    seen, makespan = world.seen, world.simulation.now
    slots = min(world.site.nodes * world.site.slots, len(seen.lines_at))
    loads = {
        "metadata server": _load(world.metadata, makespan),
        "slurmctld": _load(world.controller, makespan),
        "Slurm's scheduler": _load(world.scheduler, makespan),
        "bandwidth": _load(world.transfer, makespan),
    }
    metadata, controller, starts, transfer = loads.values()
    longest = max(loads, key=lambda name: loads[name].full)
    decisions = seen.decisions or [0.0]
    return Outcome(
        makespan=makespan,
        first_line=statistics.median(seen.first_lines),
        last_first_line=max(seen.first_lines),
        storm=sorted(seen.lines_at)[slots - 1],
        ready=sorted(seen.ready_at)[slots - 1],
        metadata=metadata,
        controller=controller,
        questions=seen.questions,
        starts=starts,
        transfer=transfer,
        decision=statistics.median(decisions),
        last_decision=max(decisions),
        decisions=len(seen.decisions) / makespan,
        slowdown=1 + seen.stalled / seen.trained,
        first=longest if loads[longest].full else "",
        interrupted=seen.interrupted,
        lost=seen.lost,
    )


def _load(server: Server, makespan: float) -> Load:
    full = sum(done >= BUSY * server.capacity for done in server.by_second.values())
    mean = server.done / makespan
    return Load(server.done, mean, server.peak, mean / server.capacity, float(full))


def table(found: Outcome, site: Site) -> str:
    """The outcome for people."""
    rows = [
        ("all trials have ended after", f"{found.makespan / 3600:,.2f} h"),
        ("first line in all slots after", f"{found.storm:,.1f} s"),
        ("training in all slots after", f"{found.ready:,.1f} s"),
        ("job's start to first line, median", f"{found.first_line:,.2f} s"),
        ("job's start to first line, longest", f"{found.last_first_line:,.2f} s"),
        *_rows("metadata", found.metadata, "calls/s"),
        *_rows("slurmctld", found.controller, "busy"),
        (
            "questions to slurmctld",
            f"{found.questions:,}, {found.questions / found.makespan:,.2g} /s",
        ),
        *_rows("jobs started", found.starts, "jobs/s"),
        ("training takes longer by", f"{100 * (found.slowdown - 1):,.2f} %"),
    ]
    if found.decisions:
        rows += [
            ("decisions of the search", f"{found.decisions:,.1f} /s"),
            ("a decision, median", f"{1e3 * found.decision:,.1f} ms"),
            ("a decision, longest", f"{1e3 * found.last_decision:,.0f} ms"),
        ]
    if found.interrupted:
        rows += [
            ("runs that were interrupted", f"{found.interrupted:,}"),
            ("training lost", f"{found.lost / 3600:,.1f} slot hours"),
        ]
    rows.append(("saturated for the longest time", found.first or "nothing"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def _rows(name: str, load: Load, unit: str) -> list[tuple[str, str]]:
    share = f"{100 * load.utilisation:.2g} % of capacity"
    return [
        (f"{name}, mean", f"{load.mean:,.3g} {unit}, {share}"),
        (f"{name}, busiest second", f"{load.peak:,.4g} {unit}, full for {load.full:,.0f} s"),
    ]
