"""The snapshot document: everything that a report, a live page or a terminal shows of experiments.

It is plain data, written as JSON. A reader looks at `version` first: a number is added whenever a
field changes its meaning or goes, and stays where fields are only added. Times are seconds since
1970, sizes are bytes, and None means that something is not known.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

VERSION: Final = 2
"""Of the document's schema."""

MAX_POINTS: Final = 1000
"""The most points of one curve."""


class CurveBudget(NamedTuple):
    """How much the curves of a document may take.

    Attributes:
        points: The most points of all curves together.
        size: The bytes that the document has at most, unless it is longer without curves.
        point_size: The bytes of a point: a step, a value, a time, and half of them for the mean.
        artifacts: The bytes that images and tables have at most beside them.
    """

    points: int
    size: int
    point_size: int
    artifacts: int


DOCUMENT: Final = CurveBudget(points=120_000, size=5_000_000, point_size=52, artifacts=1 << 20)
"""As JSON."""

PAGE: Final = CurveBudget(points=1_000_000, size=16_000_000, point_size=14, artifacts=8 << 20)
"""In a page, where curves are compressed."""

LIVE: Final = CurveBudget(points=200_000, size=6_000_000, point_size=14, artifacts=2 << 20)
"""In a page that is read again and again while it is open."""

Number = float | str | None
"""A number as JSON can hold it: "inf" and "-inf" are infinite, None is NaN."""


class Means(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The means of a curve's finite values over parts that follow each other, before thinning.

    Attributes:
        steps: The mean of the batches of each part's points, rounded; in ascending order.
        values: The mean of the values of each part's points.
        times: The mean of their times; empty if that is not known.
    """

    steps: list[int]
    values: list[Number]
    times: list[float | None] = msgspec.field(default_factory=list)


class Curve(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One metric of one trial on the clean curve, thinned to at most `MAX_POINTS` points.

    Attributes:
        group: The group of the reports, such as "training" or "validation".
        metric: The metric's name; nested ones are dotted.
        steps: How many batches were trained at each point, in ascending order.
        values: The metric at each point.
        times: When each point was reported; empty if that is not known.
        count: How many points there were before thinning.
        smallest: The smallest finite value; None without any.
        largest: The largest finite value; None without any.
        means: The values for a moving average of a thinned curve; None if it is not thinned.
    """

    group: str
    metric: str
    steps: list[int] = msgspec.field(default_factory=list)
    values: list[Number] = msgspec.field(default_factory=list)
    times: list[float | None] = msgspec.field(default_factory=list)
    count: int = 0
    smallest: float | None = None
    largest: float | None = None
    means: Means | None = None


class RunPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of a trial.

    Attributes:
        number: Its number, from 1.
        queued: When its job began to wait in the queue; None if it didn't.
        started: When it began.
        ended: When it ended; None while it goes on.
        outcome: How it ended, such as "completed", "preempted" or "restart"; None while it goes on.
        reason: Why it ended so, in a sentence.
        nodes: The names of its nodes.
        job: Its job, as Slurm names it, such as "4711_2".
        resumed_steps: How many batches were trained in the checkpoint that it began with.
        steps: How many batches were trained at its end.
    """

    number: int
    queued: float | None = None
    started: float | None = None
    ended: float | None = None
    outcome: str | None = None
    reason: str | None = None
    nodes: list[str] = msgspec.field(default_factory=list)
    job: str | None = None
    resumed_steps: int = 0
    steps: int = 0


class CheckpointPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint.

    Attributes:
        uuid: Its storage id.
        steps: How many batches were trained.
        time: When it was saved.
        state: "COMPLETED", "PARTIALLY_DELETED" or "DELETED".
        size: The bytes of all its files.
        path: Its directory, or its address in a cloud storage.
        metrics: The validation metrics of exactly its weights.
    """

    uuid: str
    steps: int
    time: float | None = None
    state: str = "COMPLETED"
    size: int = 0
    path: str | None = None
    metrics: dict[str, Number] = msgspec.field(default_factory=dict)


class ArtifactPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The images or tables of one name that a trial has reported, thinned.

    Attributes:
        name: Their name.
        steps: How many batches were trained at each, in ascending order.
        kinds: "image", "table", "histogram" or "confusion_matrix", of each.
        media: "png", "jpeg", "svg" or "json", of each.
        data: The content of each, as base64.
    """

    name: str
    steps: list[int]
    kinds: list[str]
    media: list[str]
    data: list[str] = msgspec.field(default_factory=list)


class TrialPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trial.

    Attributes:
        id: Its id.
        state: Its state, such as "RUNNING".
        hparams: Its hyperparameters by name; nested ones are dotted, and integers that a double
            can't hold are texts.
        steps: How many batches it has trained.
        progress: The part of its training that is done, from 0 to 1.
        restarts: How many of `max_restarts` it has used.
        started: When its first run began.
        ended: When its last run ended; None while it is unfinished.
        end_reason: Why it is in this state, in a sentence.
        best: The best value of the searcher's metric.
        best_steps: At how many batches that was.
        objectives: The metrics and constraints of its best validation, by name, if one metric alone
            does not decide.
        front: Whether it is on the Pareto front of these.
        feasible: Whether it keeps all constraints; None if that is not known.
        latest: The newest value of the searcher's metric.
        rung: The highest rung of the search at which it has a result, from 0; None without any, and
            outside of such a search.
        bracket: The bracket of that rung.
        batches_per_epoch: To turn batches into epochs.
        summary: Of each metric, named "group/metric": its last value.
        curves: Its metrics.
        runs: Its runs, in order.
        checkpoints: Its checkpoints, in order; of very many the newest.
        efficiency: Figures as `Trial.efficiency()` has them, those that are known.
        profile: Figures of the profiler, thinned as metrics are: each metric is "node.figure" or
            "node.device.figure", and steps are whole seconds since the first.
        log_tail: The last lines of its log, of trials that failed, and where they were asked for.
        artifacts: Its images and tables by name, as far as all of them fit into the document.
    """

    id: int
    state: str
    hparams: dict[str, Any] = msgspec.field(default_factory=dict)
    steps: int = 0
    progress: float = 0.0
    restarts: int = 0
    started: float | None = None
    ended: float | None = None
    end_reason: str | None = None
    best: Number = None
    best_steps: int | None = None
    objectives: dict[str, Number] = msgspec.field(default_factory=dict)
    front: bool = False
    feasible: bool | None = None
    latest: Number = None
    rung: int | None = None
    bracket: int | None = None
    batches_per_epoch: float | None = None
    summary: dict[str, Number] = msgspec.field(default_factory=dict)
    curves: list[Curve] = msgspec.field(default_factory=list)
    runs: list[RunPart] = msgspec.field(default_factory=list)
    checkpoints: list[CheckpointPart] = msgspec.field(default_factory=list)
    efficiency: dict[str, Any] = msgspec.field(default_factory=dict)
    profile: list[Curve] = msgspec.field(default_factory=list)
    log_tail: list[str] = msgspec.field(default_factory=list)
    artifacts: list[ArtifactPart] = msgspec.field(default_factory=list)


class ObjectivePart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A metric or a constraint of a search that one metric alone does not decide.

    Attributes:
        name: The name of the metric.
        smaller_is_better: Whether its best value is the smallest; None if it is only a constraint.
        bound: The bound that trials have to keep, such as "<= 40".
    """

    name: str
    smaller_is_better: bool | None = None
    bound: str | None = None


class RungPart(msgspec.Struct, frozen=True, kw_only=True):
    """A rung of the search.

    Attributes:
        bracket: The number of its bracket, from 0.
        rung: Its number in the bracket, from 0.
        units: The length at which its trials report.
        trials: How many trials have a result there.
        outstanding: How many are on their way to it.
        best: The best result.
        best_trial: The trial that has it.
    """

    bracket: int
    rung: int
    units: int
    trials: int
    outstanding: int
    best: Number = None
    best_trial: int | None = None


class ExperimentPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An experiment.

    Attributes:
        id: Its id.
        name: Its name.
        owner: The user who submitted it.
        state: Its state, such as "COMPLETED".
        message: The obstacle, in a sentence.
        description: Its description.
        notes: Its notes.
        labels: Its labels.
        progress: The part of it that is done, from 0 to 1.
        created: When it was submitted.
        started: When its first run began.
        ended: When its last run ended; None while it is unfinished.
        metric: The searcher's metric.
        smaller_is_better: Whether the best metric is the smallest.
        objectives: The metrics and constraints, if one metric alone does not decide.
        searcher: The searcher's name.
        unit: The unit of the searcher's lengths.
        trial_count: The number of its trials, also of those to come; `trials` may be fewer.
        config: Its configuration; secrets are masked.
        code_version: The git commit of its code, and its uncommitted changes, in a line.
        software: The Python that trains, and the number of its packages, in a line.
        code: The text files of its code by path, as far as they are small; empty if not asked for.
        trials: Its trials.
        rungs: The rungs of its search, lowest first.
        ped_anova: The importance of hyperparameters by Optuna's PED-ANOVA, if asked for; in sum 1.
        problems: The unreadable records, in sentences.
    """

    id: int
    name: str = ""
    owner: str = ""
    state: str = "ACTIVE"
    message: str | None = None
    description: str = ""
    notes: str = ""
    labels: list[str] = msgspec.field(default_factory=list)
    progress: float = 0.0
    created: float | None = None
    started: float | None = None
    ended: float | None = None
    metric: str | None = None
    smaller_is_better: bool = True
    objectives: list[ObjectivePart] = msgspec.field(default_factory=list)
    searcher: str = ""
    unit: str | None = None
    trial_count: int = 0
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    code_version: str | None = None
    software: str | None = None
    code: dict[str, str] = msgspec.field(default_factory=dict)
    trials: list[TrialPart] = msgspec.field(default_factory=list)
    rungs: list[RungPart] = msgspec.field(default_factory=list)
    ped_anova: dict[str, float] = msgspec.field(default_factory=dict)
    problems: list[str] = msgspec.field(default_factory=list)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Experiments as they were at one moment.

    Attributes:
        version: Of this schema.
        taken: When it was taken.
        store: The path of the store.
        experiments: In the order in which they were asked for.
    """

    version: int = VERSION
    taken: float
    store: str
    experiments: list[ExperimentPart]
