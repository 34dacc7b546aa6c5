"""The snapshot document: everything that a report, a live page or a terminal shows of experiments.

It is plain data, written as JSON. A reader looks at `version` first: a number is added whenever a
field changes its meaning or goes, and stays where fields are only added. Times are seconds since
1970, sizes are bytes, and None means that something is not known. docs/snapshot.md describes the
fields.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

VERSION: Final = 2
"""Of the document's schema."""

MAX_POINTS: Final = 1000
"""The most points of one curve."""


class CurveBudget(NamedTuple):
    """The most `points` of all curves together; the `size` in bytes that the document has at most,
    unless it is longer without curves; the bytes of a point (`point_size`: a step, a value, a time,
    and half of them for the mean); the bytes of `artifacts` beside them."""

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
    """The means of a curve's finite values over parts that follow each other, before thinning."""

    steps: list[int]
    values: list[Number]
    times: list[float | None] = msgspec.field(default_factory=list)


class Curve(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One metric of one trial on the clean curve, thinned to at most `MAX_POINTS` points."""

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
    """One run of a trial."""

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
    """A checkpoint."""

    uuid: str
    steps: int
    time: float | None = None
    state: str = "COMPLETED"
    size: int = 0
    path: str | None = None
    metrics: dict[str, Number] = msgspec.field(default_factory=dict)


class ArtifactPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The images or tables of one name that a trial has reported, thinned."""

    name: str
    steps: list[int]
    kinds: list[str]
    media: list[str]
    data: list[str] = msgspec.field(default_factory=list)


class TrialPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trial."""

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
    """A metric or a constraint of a search that one metric alone does not decide."""

    name: str
    smaller_is_better: bool | None = None
    bound: str | None = None


class RungPart(msgspec.Struct, frozen=True, kw_only=True):
    """A rung of the search."""

    bracket: int
    rung: int
    units: int
    trials: int
    outstanding: int
    best: Number = None
    best_trial: int | None = None


class ExperimentPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An experiment."""

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
    """Experiments as they were at one moment."""

    version: int = VERSION
    taken: float
    store: str
    experiments: list[ExperimentPart]
