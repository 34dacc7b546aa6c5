"""The events of a search's log, read into typed values.

An event is a small mapping with its kind under `e`. Anything else, or a value of a wrong type,
reads as None: a fold passes over it, so that an older version can read a newer
log and a broken fact does no harm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from detslurm._base.states import RunOutcome
from detslurm.searcher.optuna.history import KnownTrial, Position

WORST = math.inf
"""The score without a finite metric: failed trials, NaN, an overflow. Smaller is better."""


class WorkRequested(msgspec.Struct, frozen=True, tag_field="e", tag="work_requested"):
    """A worker wants work; `incarnation` distinguishes processes of one name.

    With `after` it counts only as the request after that number of others of its worker: a late
    one changes nothing once the process that was started in its place has asked.
    """

    worker: str
    incarnation: str | None = None
    after: int | None = None


class Validated(msgspec.Struct, frozen=True, tag_field="e", tag="validated"):
    """A trial's chief reports its metric at a length, or at a time of the time metric.

    Where a search compares by several values, `metrics` has them by name, and `metric` the first.
    """

    trial: int
    metric: Any = None
    length: float | None = None
    time: float | None = None
    stop: bool = False  # the verdict of a pruner, and what it noted down
    notes: dict[str, Any] = {}
    fencing_token: int | None = None  # if given, it counts only while that run is the trial's last
    metrics: dict[str, Any] = {}

    @property
    def units(self) -> int | None:
        """How far the trial is, in whole units; None if the report doesn't contain it."""
        value = self.time if self.length is None else self.length
        return int(value) if value is not None and math.isfinite(value) else None


class Reported(msgspec.Struct, frozen=True, tag_field="e", tag="reported"):
    """A trial's chief reports its metric where only the rule that ends the search looks at it."""

    trial: int
    metric: Any = None
    fencing_token: int | None = None  # as for `Validated`


class RunEnded(msgspec.Struct, frozen=True, tag_field="e", tag="run_ended"):
    """A worker's run of a trial ended; with a `fencing_token`, only if that is the last token."""

    trial: int
    worker: str
    outcome: RunOutcome
    checkpoint: str | None = None
    fencing_token: int | None = None


class Sampled(msgspec.Struct, frozen=True, tag_field="e", tag="sampled"):
    """The hyperparameters of a trial have been chosen; the first choice stands.

    With `after` it stands only as the sample after that number of others, for which it was made.
    """

    trial: int
    hparams: dict[str, Any]
    after: int | None = None
    generators: list[Position] = []
    optuna: str | None = None  # the version that drew it


class Operations(msgspec.Struct, frozen=True, tag_field="e", tag="operations"):
    """A custom method's answer to the searcher's events up to number `after`."""

    after: int
    ops: list[dict[str, Any]]


class KnownResults(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="e", tag="known"):
    """The results of earlier experiments that a search begins with; the first such event counts.

    It also has the experiments, and how many of their results could not be taken.
    """

    experiments: list[int]
    results: list[KnownTrial]
    outside: int = 0  # of the new search's space
    unmeasured: int = 0  # without the metric
    older: int = 0  # than the newest that were taken


class Extended(msgspec.Struct, frozen=True, tag_field="e", tag="extended"):
    """The search goes on where that of another experiment ended; only a first event counts.

    It carries the other search: what may differ in its section `searcher`, its `max_restarts`, and
    its events. All else is in the configuration alone: `first` and `prior` may hold secrets.
    """

    searcher: dict[str, Any]
    max_restarts: int
    events: list[dict[str, Any]]


Event = (
    WorkRequested | Validated | Reported | RunEnded | Sampled | Operations | KnownResults | Extended
)

# msgspec finds a member of a union by its tag, too, but prepares the union again for each value:
# that takes ten times as long as all the rest of reading an event.
_KINDS: dict[str, type[Event]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Event)}


def read_event(plain: Mapping[str, Any]) -> Event | None:
    """The event in typed form; None if it is none that we know."""
    try:
        return msgspec.convert(plain, _KINDS[plain["e"]])
    except (msgspec.ValidationError, KeyError, TypeError):
        return None


def number(metric: Any) -> float | None:
    """The metric as a number; None for NaN and for anything but a number."""
    if isinstance(metric, bool) or not isinstance(metric, int | float):
        return None
    try:
        value = float(metric)
    except OverflowError:
        return None
    return None if math.isnan(value) else value


def finite(metric: Any) -> float | None:
    """The metric as a number; None for what can't be compared: infinite ones diverged, too."""
    value = number(metric)
    return None if value is None or math.isinf(value) else value


def score(metric: Any, smaller_is_better: bool) -> float:
    """A metric as a number of which smaller is better; anything not finite is the worst."""
    value = finite(metric)
    if value is None:
        return WORST
    return value if smaller_is_better else -value
