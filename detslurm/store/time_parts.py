"""The parts of a trial's time: training, and what it lost. Pure: intervals in, seconds out.

Each instant belongs to one part, so that the parts sum to the whole. Where intervals overlap, the
part that comes later in `PARTS` counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

PARTS: Final = (
    "queue",
    "paused",
    "training",
    "restart",
    "repeated",
    "idle",
    "validation",
    "start_slurm",
    "start_detslurm",
    "start_code",
    "save",
)
"""The names of the parts.

    queue: From a submission, or from the end of a run that was requeued, to the job's start.
    paused: From the end of a run that the user paused to the next start.
    training: All of a run that is nothing else.
    restart: Between two runs, as far as the queue's part of it is not known; and from the last save
        of a run to its end, where no batch was trained after it.
    repeated: From the checkpoint that a later run began with to the end of the run: training that
        was done again.
    idle: Processes that did nothing, in a run.
    validation: As the code reports it; else it is in `training`.
    start_slurm: From the job's start to the runner's.
    start_detslurm: From the runner's start to that of the code's process.
    start_code: From there to the first batch, or to the end of `core.init()`.
    save: Saves that kept the training loop waiting.
"""

PRODUCTIVE: Final = ("training", "validation")
_RANK: Final = {name: rank for rank, name in enumerate(PARTS)}


class Interval(NamedTuple):
    """A part of the time, in seconds since 1970."""

    part: str
    begin: float
    end: float


def seconds_of(intervals: Iterable[Interval], begin: float, end: float) -> dict[str, float]:
    """The seconds of each part between `begin` and `end`; time that no interval covers is
    `restart`."""
    edges: list[tuple[float, int, int]] = [(end, 0, 0)]
    for part, first, last in intervals:
        first, last = max(first, begin), min(last, end)
        if first < last:
            edges += [(first, _RANK[part], 1), (last, _RANK[part], -1)]
    found = dict.fromkeys(PARTS, 0.0)
    active, now = [0] * len(PARTS), begin
    for time, rank, change in sorted(edges):
        if time > now:
            top = max((r for r, count in enumerate(active) if count), default=_RANK["restart"])
            found[PARTS[top]] += time - now
            now = time
        active[rank] += change
    return found


class Advice(NamedTuple):
    """The checkpoint interval that would have been best.

    Attributes:
        seconds: Young's interval of training between two saves, for this save time and these
            failures.
        current: The median interval between two saves.
        save: The median seconds of a save.
        failures: How many runs ended with batches that were not saved.
        gain: The training time with the best interval, as a multiple of that with the current
            interval, as expected.
    """

    seconds: float
    current: float
    save: float
    failures: int
    gain: float


def expected_ratio(interval: float, save: float, failure: float, recovery: float) -> float:
    """The expected part of the time that is training, once and for good.

    Each `interval` seconds a save takes `save` seconds. Failures come at random, after `failure`
    seconds of training and saving on average, and `recovery` seconds pass before training goes on.
    """
    work = (interval + save) / failure
    if work > 700:  # exp() has no such number: nothing is ever saved
        return 0.0
    return interval / ((failure + recovery) * math.expm1(work))


def best_interval(save: float, failure: float) -> float:
    """Young's first-order optimum of the seconds between two saves."""
    return math.sqrt(2 * save * failure)


def advice(
    saves: Sequence[float], intervals: Sequence[float], failures: int, up: float, lost: float
) -> Advice | None:
    """The best interval by the seconds of saves and between them; None without a failure or a save.

    `up` are the seconds of training and saving of all runs, `lost` those of all restarts.
    """
    if not (saves and intervals and failures and up > 0):
        return None
    from statistics import median  # only here: a thousand runners start without it

    save, current = median(saves), median(intervals)
    if save <= 0 or current <= 0:
        return None
    failure, recovery = up / failures, lost / failures
    best = best_interval(save, failure)
    now = expected_ratio(current, save, failure, recovery)
    if not now:
        return None
    gain = expected_ratio(best, save, failure, recovery) / now
    return Advice(best, current, save, failures, max(gain, 1.0))
