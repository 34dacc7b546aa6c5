"""What each step costs, as measured by `benchmarks.site.measure`."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

KEPT = Path(__file__).with_name("costs.json")


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Path calls, those on the node's own disk and in /proc left out.

    Attributes:
        submit: Of a submission of 1,000 trials.
        runner: Of a runner, up to its agent.
        agent: Of an agent, up to the first line of the user's code, whose Python is counted.
        imports: Of `import detslurm` and `core.init()`.
        opening: Those of them that name the experiment or its code.
        first_report: Of the first metrics that are reported.
        report: Of each further one.
        checkpoint: Of a small one.
        closing: Of the code's end, its agent's and its runner's.
        compacting: Of the end of an experiment, but for its trials.
        compacting_trial: Of the end of an experiment, for each of its trials.
        minute: Of a runner, for each minute that its code runs.
        listing: Of `experiment list`.
        look: Of one look of `detslurm top`, but for trials.
        look_trial: Of one, for each trial that runs.
    """

    submit: float
    runner: float
    agent: float
    imports: float
    opening: float
    first_report: float
    report: float
    checkpoint: float
    closing: float
    compacting: float
    compacting_trial: float
    minute: float
    listing: float
    look: float
    look_trial: float


class Controller(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that Slurm's controller is busy.

    Attributes:
        job: With one element of an array, from its start to its end, its step included.
        queue: With one squeue, but for the jobs.
        queued_job: With one squeue, for each job that runs or waits by itself.
        submission: With one sbatch of an array.
        update: With one scontrol (requeue, hold).
    """

    job: float
    queue: float
    queued_job: float
    submission: float
    update: float


class Seconds(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a core of the machine that was measured.

    Attributes:
        python: Of `python -c pass`, which says how fast the machine is.
        start: Of runner, agent and the user's Python, up to the user's first line.
        imports: Of `import detslurm`, `core.init()` and a first report.
        closing: Of runner and agent, after the user's code.
        slurm: Of the nodes' daemons, for a job of one step.
        look_trial: Of one look of `detslurm top`, for each trial that runs.
    """

    python: float
    start: float
    imports: float
    closing: float
    slurm: float
    look_trial: float


S = TypeVar("S", Controller, Seconds)


class AtOnce(msgspec.Struct, frozen=True, array_like=True):
    """A decision of one of so many workers that decide at the same moment, in the mean.

    Attributes:
        workers: How many.
        calls: Path calls of each.
        time: For each, where a call takes 1; most of it waits for those that commit for all.
        facts: Of the log, for each.
    """

    workers: int
    calls: float
    time: float
    facts: float


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """All of them.

    Attributes:
        decisions: Path calls of a decision, by how many others have decided since one's last.
        crowds: Decisions of a log that begins, by how many workers meet, ascending.
    """

    date: str
    version: str
    machine: str
    calls: Calls
    controller: Controller
    seconds: Seconds
    decisions: list[tuple[int, float]]
    crowds: list[AtOnce]

    def decision(self, behind: float) -> float:
        """Path calls of a decision after so many others, between those that were measured."""
        for (low, few), (high, many) in pairwise(self.decisions):
            if behind <= high:
                share = math.log1p(behind - low) / math.log1p(high - low)
                return few + share * (many - few)
        return self.decisions[-1][1] * behind / self.decisions[-1][0]

    def on(self, python: float) -> Costs:
        """On a machine where `python -c pass` takes so many seconds of a core."""
        slower = python / self.seconds.python
        return msgspec.structs.replace(
            self,
            seconds=_times(self.seconds, slower),
            controller=_times(self.controller, slower),
        )

    def crowd(self, workers: int) -> AtOnce:
        """A decision among so many, or among the next more that were measured.

        Of those beyond the largest crowd each needs no more: a fact takes as many along.
        """
        larger = (found for found in self.crowds if found.workers >= workers)
        return next(larger, self.crowds[-1])


def _times(figures: S, factor: float) -> S:
    return type(figures)(**{k: v * factor for k, v in msgspec.structs.asdict(figures).items()})


def kept() -> Costs:
    """Those that were measured last."""
    return msgspec.json.decode(KEPT.read_bytes(), type=Costs)
