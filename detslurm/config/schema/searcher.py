"""Searchers of both generations: with `max_length`, or with `time_metric` and `max_time`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from detslurm.config.fields import NonNegative, Positive, Section, Text, deprecated, expected
from detslurm.config.schema.lengths import Length, PositiveLength

MaxLength = Annotated[
    NonNegative | PositiveLength | None,
    expected('a length such as {"batches": 1000}, or an integer >= 0'),
]
MaxTrials = Annotated[int, Meta(ge=1, le=1_000_000)]
Divisor = Annotated[float, Meta(gt=1)]
Mode = Literal["aggressive", "standard", "conservative"]
StopOnce = Annotated[
    bool | None, deprecated("time_metric with max_time stops trials in this way by itself")
]


class Searcher(Section, frozen=True, kw_only=True):
    """What every searcher has: the metric that it minimises or maximises, and a warm start."""

    metric: Text
    smaller_is_better: bool = True
    source_trial_id: int | None = None
    source_checkpoint_uuid: str | None = None


class Single(Searcher, frozen=True, kw_only=True, tag_field="name", tag="single"):
    """One trial."""

    max_length: MaxLength = None


class Random(Searcher, frozen=True, kw_only=True, tag_field="name", tag="random"):
    """`max_trials` random samples."""

    max_trials: MaxTrials
    max_concurrent_trials: NonNegative = 16
    max_length: MaxLength = None


class Grid(Searcher, frozen=True, kw_only=True, tag_field="name", tag="grid"):
    """Every point of a grid."""

    max_concurrent_trials: NonNegative = 16
    max_length: MaxLength = None


class Halving(Searcher, frozen=True, kw_only=True):
    """What the searchers that stop trials early share.

    A configuration of the newer generation has `max_time` in units of `time_metric`; one of the
    older has `max_length`, and when that names a unit the other two are filled from it.
    """

    max_trials: MaxTrials
    divisor: Divisor = 4
    max_concurrent_trials: NonNegative = 16
    time_metric: Text | None = None
    max_time: Positive | None = None
    max_length: MaxLength = None
    stop_once: StopOnce = None


class AsyncHalving(Halving, frozen=True, kw_only=True, tag_field="name", tag="async_halving"):
    """Asynchronous successive halving with `num_rungs` rungs."""

    num_rungs: Positive


class AdaptiveASHA(Halving, frozen=True, kw_only=True, tag_field="name", tag="adaptive_asha"):
    """Several brackets of asynchronous successive halving."""

    mode: Mode = "standard"
    max_rungs: Positive = 5
    bracket_rungs: tuple[Positive, ...] = ()


class Custom(Searcher, frozen=True, kw_only=True, tag_field="name", tag="custom"):
    """A search method of the user's own; `unit` is that of its lengths."""

    unit: Literal["batches", "records", "epochs"] | None = None


class Obsolete(Searcher, frozen=True, kw_only=True):
    """Fields of the searchers that only old experiments have: read, never run."""

    divisor: Divisor = 4
    max_length: PositiveLength | None = None


class SyncHalving(Obsolete, frozen=True, kw_only=True, tag_field="name", tag="sync_halving"):
    """Obsolete: synchronous halving."""

    num_rungs: Positive | None = None
    budget: PositiveLength | None = None
    train_stragglers: bool = True


class Adaptive(Obsolete, frozen=True, kw_only=True, tag_field="name", tag="adaptive"):
    """Obsolete: adaptive with a budget."""

    budget: Length | None = None
    bracket_rungs: tuple[int, ...] = ()
    mode: Mode = "standard"
    max_rungs: Positive = 5
    train_stragglers: bool = True


class AdaptiveSimple(Obsolete, frozen=True, kw_only=True, tag_field="name", tag="adaptive_simple"):
    """Obsolete: adaptive with a number of trials."""

    max_trials: Annotated[int, Meta(ge=1, le=2000)] | None = None
    mode: Mode = "standard"
    max_rungs: Positive = 5


AnySearcher = (
    Single
    | Random
    | Grid
    | AsyncHalving
    | AdaptiveASHA
    | Custom
    | SyncHalving
    | Adaptive
    | AdaptiveSimple
)
