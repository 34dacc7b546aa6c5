"""What a submission costs, before it is made: slot-hours and wall time, each with its source.

Pure. Nothing is guessed: a figure that can't be known has the reason instead of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure and where it comes from.

    Attributes:
        value: The figure; None if it is not known.
        source: How it was computed, or why it is not known.
        bound: Whether it is that much at most, at least, or about that much.
    """

    value: float | None
    source: str
    bound: Literal["most", "about", "least"] = "about"


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done, by the configuration.

    Attributes:
        trials: The number of trials; None if it is decided while they run.
        jobs: The number of jobs, or elements of arrays.
        slots: The slots of each trial.
        nodes: The nodes of each trial.
        at_once: How many trials the configuration lets run at once.
        units: The units of training of all trials together; None if the code decides.
        longest: Those of the longest trial.
        limit: The time limit of a job in seconds; None if there is none, or none is known.
        limit_source: Where the limit comes from, such as "slurm.time", or why it is None.
        budget: The slot-hours after which the experiment is paused; None for no such limit.
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
    """What earlier runs took.

    Attributes:
        seconds: The time of one unit of training, or of one trial.
        per: Which of both.
        source: The runs that were measured.
    """

    seconds: float
    per: Literal["unit", "trial"]
    source: str


@dataclass(frozen=True, slots=True)
class PartitionLoad:
    """The slots of a partition now.

    Attributes:
        partition: Its name.
        free: The free slots of each node that takes jobs.
        total: All slots of the same nodes.
        pending: How many jobs wait there that may start before this one.
    """

    partition: str
    free: tuple[int, ...]
    total: tuple[int, ...]
    pending: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a submission costs.

    Attributes:
        unit_seconds: The time of one unit of training in earlier runs.
        most_slot_hours: What its jobs use if each comes to its time limit.
        expected_slot_hours: What they use at the pace of earlier runs.
        wall_seconds: How long they take at that pace on the slots that are free now.
    """

    unit_seconds: Figure
    most_slot_hours: Figure
    expected_slot_hours: Figure
    wall_seconds: Figure

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        return asdict(self)


def cost_of(work: Work, pace: Pace | str, load: PartitionLoad | str) -> Cost:
    """The cost of some work.

    Args:
        work: What is to be done.
        pace: What earlier runs took, or why that is not known.
        load: The slots of the partition, or why they are not known.

    Returns:
        Its figures.
    """
    return Cost(_unit(pace), _most(work), _expected(work, pace), _wall(work, pace, load))


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


def _expected(work: Work, pace: Pace | str) -> Figure:
    if isinstance(pace, str):
        return Figure(None, pace)
    seconds = _trial_seconds(work, pace)
    if isinstance(seconds, str):
        return Figure(None, seconds)
    return Figure(seconds[0] * work.slots / 3600, pace.source)


def _trial_seconds(work: Work, pace: Pace) -> tuple[float, float] | str:
    """Seconds of all trials together and of the longest one, or why that is not known."""
    if work.trials is None:
        return "the number of trials is decided while they run"
    if pace.per == "trial":
        return work.trials * pace.seconds, pace.seconds
    if work.units is None or work.longest is None:
        return "the configuration sets no length"
    return work.units * pace.seconds, work.longest * pace.seconds


def _wall(work: Work, pace: Pace | str, load: PartitionLoad | str) -> Figure:
    """Computed on the slots that are free now; others may take them, or leave more."""
    seconds = pace if isinstance(pace, str) else _trial_seconds(work, pace)
    if isinstance(seconds, str):
        return Figure(None, seconds)
    if isinstance(load, str):
        return Figure(None, load)
    where, waiting = f"of {load.partition!r}", _waiting(load)
    if not fitting(load.total, work.slots, work.nodes):
        return Figure(None, f"no node {where} can hold a trial now")
    fits = fitting(load.free, work.slots, work.nodes)
    free = f"{sum(load.free)} of {counted(sum(load.total), 'slot')} {where} are free"
    if not fits:
        return Figure(None, f"{free}: no trial can start now{waiting}")
    at_once = min(fits, work.at_once)
    least: Literal["least", "about"] = "least" if load.pending else "about"
    return Figure(
        makespan(work.trials or 0, *seconds, at_once),
        f"{at_once} at once: {free}{waiting}",
        least,
    )


def _waiting(load: PartitionLoad) -> str:
    return f", and {counted(load.pending, 'job')} may start before" if load.pending else ""


def makespan(trials: int, total: float, longest: float, at_once: int) -> float:
    """Seconds of all trials, `at_once` of them at once.

    Args:
        trials: The number of trials.
        total: The seconds of all of them together.
        longest: Those of the longest one.
        at_once: How many run at once; 1 or more.

    Returns:
        Exact for trials of one length; otherwise at least that.
    """
    if trials * longest <= total * (1 + 1e-9):
        return -(-trials // at_once) * longest
    return max(longest, total / at_once)


def fitting(slots_of_nodes: Sequence[int], slots: int, nodes: int) -> int:
    """How many trials fit into nodes side by side.

    Args:
        slots_of_nodes: The slots of each node.
        slots: The slots of a trial.
        nodes: The nodes that they are spread over, in equal parts.

    Returns:
        The number of trials.
    """
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
