"""The cost of a submission, before it is made: slot-hours and wall time, each with its source.

Pure. An unknown figure has the reason instead of a value; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its source, or None with the reason; `bound` is the side that it is on."""

    value: float | None
    source: str
    bound: Literal["most", "about", "least"] = "about"


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a submission, by its configuration; None where a figure is not known.

    Attributes:
        at_once: How many trials the configuration lets run at once.
        units: The units of training of all trials together; `longest` of the longest trial.
        limit: The time limit of a job in seconds; None if there is none, or none is known.
        limit_source: Where the limit comes from, such as "slurm.time", or why it is None.
        budget: The slot-hours after which the experiment is paused; None without a budget.
    """

    trials: int | None
    jobs: int
    slots: int
    nodes: int = 1
    at_once: int = 1
    units: int | None = None
    longest: int | None = None
    limit: int | None = None
    limit_source: str = "the time limit of its jobs is not known"
    budget: float | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """The seconds of one unit of training, or of one trial (`per`), in the runs of `source`."""

    seconds: float
    per: Literal["unit", "trial"]
    source: str


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """The free slots, and all slots, of each node of a partition that takes jobs now, and how many
    pending jobs may start before this job."""

    partition: str
    free: tuple[int, ...]
    total: tuple[int, ...]
    pending: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a submission: the most by time limits, the expected cost at the pace of earlier
    runs, and the time at that pace on the slots that are free now."""

    unit_seconds: Figure
    most_slot_hours: Figure
    expected_slot_hours: Figure
    wall_seconds: Figure

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        return asdict(self)


def cost_of(work: Work, pace: Pace | str, load: PartitionLoad | str) -> Cost:
    """The cost of some work; `pace` or `load` is a reason where it is unknown."""
    seconds = pace if isinstance(pace, str) else _trial_seconds(work, pace)
    if isinstance(pace, str) or isinstance(seconds, str):
        expected = Figure(None, str(seconds))
    else:
        expected = Figure(seconds[0] * work.slots / 3600, pace.source)
    return Cost(_unit(pace), _most(work), expected, _wall(work, seconds, load))


def _unit(pace: Pace | str) -> Figure:
    if isinstance(pace, str):
        return Figure(None, pace)
    if pace.per == "trial":
        return Figure(None, "earlier runs show what a trial takes, not one unit")
    return Figure(pace.seconds, pace.source)


def _most(work: Work) -> Figure:
    if work.budget is not None:
        return Figure(work.budget, "slurm.budget: then it is paused", "most")
    if work.limit is None:
        return Figure(None, work.limit_source, "most")
    source = (
        f"{counted(work.jobs, 'job')} x {counted(work.slots, 'slot')} x {clock(work.limit)}"
        f" ({work.limit_source}), without the further jobs of trials that need longer"
    )
    return Figure(work.jobs * work.slots * work.limit / 3600, source, "most")


def _trial_seconds(work: Work, pace: Pace) -> tuple[float, float] | str:
    """Seconds of all trials together and of the longest trial, or why that is not known."""
    if work.trials is None:
        return "the number of trials is decided while they run"
    if pace.per == "trial":
        return work.trials * pace.seconds, pace.seconds
    if work.units is None or work.longest is None:
        return "the configuration sets no length"
    return work.units * pace.seconds, work.longest * pace.seconds


def _wall(work: Work, seconds: tuple[float, float] | str, load: PartitionLoad | str) -> Figure:
    """Computed on the slots that are free now; other jobs may take them, or leave more."""
    if isinstance(seconds, str):
        return Figure(None, seconds)
    if isinstance(load, str):
        return Figure(None, load)
    where, waiting = f"of {load.partition!r}", ""
    if load.pending:
        waiting = f", and {counted(load.pending, 'job')} may start before"
    if not fitting(load.total, work.slots, work.nodes):
        return Figure(None, f"no node {where} can hold a trial now")
    fits = fitting(load.free, work.slots, work.nodes)
    free = f"{sum(load.free)} of {counted(sum(load.total), 'slot')} {where} are free"
    if not fits:
        return Figure(None, f"{free}: no trial can start now{waiting}")
    at_once = min(fits, work.at_once)
    wall = makespan(work.trials or 0, *seconds, at_once)
    bound: Literal["least", "about"] = "least" if load.pending else "about"
    return Figure(wall, f"{at_once} at once: {free}{waiting}", bound)


def makespan(trials: int, total: float, longest: float, at_once: int) -> float:
    """Seconds of all trials, `at_once` at a time, by their `total` and that of the longest trial.

    Exact for trials of one length; otherwise a lower bound.
    """
    if trials * longest <= total * (1 + 1e-9):
        return -(-trials // at_once) * longest
    return max(longest, total / at_once)


def fitting(slots_of_nodes: Sequence[int], slots: int, nodes: int) -> int:
    """How many trials fit side by side into nodes with so many slots; a trial's `slots` are spread
    over `nodes` in equal parts."""
    each = max(slots // nodes, 1)
    if nodes == 1:
        return sum(here // each for here in slots_of_nodes)
    return sum(here >= each for here in slots_of_nodes) // nodes


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 slot`, `1,200 slots`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def clock(seconds: int) -> str:
    """A time limit: `1-12:00:00`, `4:00:00`."""
    days, rest = divmod(seconds, 86400)
    text = f"{rest // 3600}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}" if days else text
