"""Searchers of both generations: with `max_length`, or with `time_metric` and `max_time`."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from msgspec import Meta

from detslurm.config.bounds import bound_of
from detslurm.config.fields import (
    FrozenDict,
    NonNegative,
    Positive,
    Section,
    Text,
    deprecated,
    expected,
    must,
)
from detslurm.config.schema.training import Length, PositiveLength

MaxLength = Annotated[
    NonNegative | PositiveLength | None,
    expected('a length such as {"batches": 1000}, or an integer >= 0'),
]
MaxTrials = Annotated[int, Meta(ge=1, le=1_000_000)]
# Each rung's power of the divisor has to stay a number.
Divisor = Annotated[float, Meta(gt=1, le=1000)]
Rungs = Annotated[int, Meta(ge=1, le=100)]
RoundLength = Annotated[
    Positive | PositiveLength, expected('a length such as {"batches": 1000}, or an integer >= 1')
]
Probability = Annotated[float, Meta(ge=0, le=1)]
Sampler = Literal["tpe", "random", "cmaes", "gp", "qmc", "nsgaii", "nsgaiii", "brute_force"]
ModelSampler = Literal["tpe", "gp"]
Pruner = Literal[
    "median",
    "percentile",
    "hyperband",
    "successive_halving",
    "patient",
    "threshold",
    "wilcoxon",
    "nop",
]
Confidence = Literal["low", "medium", "high"]
Mode = Literal["aggressive", "standard", "conservative"]
StopOnce = Annotated[
    bool | None, deprecated("time_metric with max_time always stops trials in this way")
]


Finite = Annotated[float, must(lambda value: None if math.isfinite(value) else "must be finite")]


class Stop(Section, frozen=True, kw_only=True):
    """When a search ends although it has trials left."""

    no_better_for: Positive | None = None
    target: Finite | None = None


def _bounds(value: dict[str, Any]) -> str | None:
    wrong = [k for k, text in value.items() if not (isinstance(text, str) and bound_of(text))]
    return f"{', '.join(wrong)} lacks an operator (<=, >=, <, >) or a number" if wrong else None


Constraints = Annotated[FrozenDict, must(_bounds, 'a mapping such as {memory_gb: "<= 40"}')]


class Metric(Section, frozen=True, kw_only=True):
    """One of the metrics of a search that has several."""

    name: Text
    smaller_is_better: bool = True


class Searcher(Section, frozen=True, kw_only=True):
    """Fields of every searcher: its objectives, the points it tries first, a warm start.

    Where the user has written `metrics`, the first of them fills `metric` and `smaller_is_better`.
    `constraints` has the bounds that trials have to keep, by the metric's name.
    """

    metric: Text
    smaller_is_better: bool = True
    metrics: tuple[Metric, ...] = ()
    constraints: Constraints = FrozenDict()
    first: tuple[FrozenDict, ...] = ()
    source_trial_id: int | None = None
    source_checkpoint_uuid: str | None = None
    stop: Stop | None = None


class Single(Searcher, frozen=True, kw_only=True, tag_field="name", tag="single"):
    """One trial."""

    max_length: MaxLength = None


class Random(Searcher, frozen=True, kw_only=True, tag_field="name", tag="random"):
    """`max_trials` random samples."""

    max_trials: MaxTrials
    max_concurrent_trials: NonNegative = 16
    max_length: MaxLength = None
    prior: FrozenDict = FrozenDict()


class Grid(Searcher, frozen=True, kw_only=True, tag_field="name", tag="grid"):
    """Every point of a grid."""

    max_concurrent_trials: NonNegative = 16
    max_length: MaxLength = None


class Halving(Searcher, frozen=True, kw_only=True):
    """The common fields of searchers that stop trials early.

    A configuration of the newer generation has `max_time` in units of `time_metric`; the
    older has `max_length`, and when that names a unit the other two are filled from it. Where the
    user has set all three the newer two count, and `stop_once` is set. A `sampler` chooses new
    samples by the results of a rung, once that rung has enough.
    """

    max_trials: MaxTrials
    divisor: Divisor = 4
    max_concurrent_trials: NonNegative = 16
    time_metric: Text | None = None
    max_time: Positive | None = None
    max_length: MaxLength = None
    stop_once: StopOnce = None
    sampler: ModelSampler | None = None
    prior_experiments: tuple[Positive, ...] = ()
    prior: FrozenDict = FrozenDict()


class AsyncHalving(Halving, frozen=True, kw_only=True, tag_field="name", tag="async_halving"):
    """Asynchronous successive halving with `num_rungs` rungs."""

    num_rungs: Rungs


class AdaptiveASHA(Halving, frozen=True, kw_only=True, tag_field="name", tag="adaptive_asha"):
    """Several brackets of asynchronous successive halving."""

    mode: Mode = "standard"
    max_rungs: Positive = 5
    bracket_rungs: tuple[Rungs, ...] = ()


class Custom(Searcher, frozen=True, kw_only=True, tag_field="name", tag="custom"):
    """A search method of the user's own; `unit` is that of its lengths."""

    unit: Literal["batches", "records", "epochs"] | None = None


class ReplaceFunction(Section, frozen=True, kw_only=True):
    """The part of a population that copies of the best part replace after each round."""

    truncate_fraction: Annotated[float, Meta(ge=0, le=0.5)] = 0.2


class ExploreFunction(Section, frozen=True, kw_only=True):
    """How a copy's hyperparameters differ from those of the trial that it starts from."""

    resample_probability: Probability = 0.2
    perturb_factor: Probability = 0.2


class PBT(Searcher, frozen=True, kw_only=True, tag_field="name", tag="pbt"):
    """Population based training: rounds of training, after each the best replace the worst."""

    population_size: Annotated[int, Meta(ge=2, le=100_000)]
    num_rounds: Annotated[int, Meta(ge=1, le=100_000)]
    length_per_round: RoundLength
    replace_function: ReplaceFunction = ReplaceFunction()
    explore_function: ExploreFunction = ExploreFunction()
    max_concurrent_trials: NonNegative = 16
    prior: FrozenDict = FrozenDict()


class Optuna(Searcher, frozen=True, kw_only=True, tag_field="name", tag="optuna"):
    """Optuna's samplers and pruners; the arguments are those of its classes."""

    max_trials: MaxTrials
    max_concurrent_trials: NonNegative = 16
    sampler: Sampler = "tpe"
    sampler_args: FrozenDict = FrozenDict()
    prior_experiments: tuple[Positive, ...] = ()
    pruner: Pruner | None = None
    pruner_args: FrozenDict = FrozenDict()
    time_metric: Text | None = None
    max_length: MaxLength = None


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
    | PBT
    | Optuna
    | Custom
    | SyncHalving
    | Adaptive
    | AdaptiveSimple
)
