"""One clean curve out of the logs of many runs: what a resumed run repeats counts once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

# A decoder makes a string for each row whose group is any, and takes one for all that has a choice.
if TYPE_CHECKING:
    Group = str
else:
    Group = Literal["training", "validation"]

TRAINING, VALIDATION = "training", "validation"
_DECIDING = (TRAINING, VALIDATION)


class MetricRow(msgspec.Struct, frozen=True, gc=False, tag_field="t", tag="metrics"):
    """Metrics of one group at one step; decodes from a record of them, and from no other.

    Attributes:
        group: The group, such as "training".
        steps: How many batches were trained.
        metrics: Values by name.
        run: The number of the run that reported them last; 0 if the trial that this one continues
            did.
        time: When they were reported, in seconds since 1970; None if unknown.
        batch: The metrics of each batch, if they were reported.
        rank: The lowest rank that reported any of them.
    """

    group: Group
    steps: int
    metrics: dict[str, Any]
    run: int = 1
    time: float | None = None
    batch: list[Any] | None = None
    rank: int = 0


class Span(NamedTuple):
    """The facts of a run that cut earlier runs: where it resumed, and its first reported step.

    That is a step of training metrics, or of validations in code that reports no others. Groups of
    the user's own may count something else, or report at step 0 how large the model is: theirs
    decides only in a trial that reports nothing else.
    """

    run: int
    resumed: float  # infinite where only its code knows: it may have weights of its own
    first: float  # infinite while the run has reported nothing
    first_of_others: float = math.inf


class FirstSteps:
    """The first steps of a run's groups, as far as they are read."""

    def __init__(self, resumed: float) -> None:
        self._resumed = resumed
        self._first: dict[str, int] = {}

    def take(self, group: str, steps: Sequence[int]) -> None:
        """More steps at which metrics of a group were reported."""
        if group not in _DECIDING and math.isfinite(self._resumed):
            steps = [step for step in steps if step >= self._resumed]  # the others count otherwise
        if steps:
            first = min(steps)
            self._first[group] = min(self._first.get(group, first), first)

    def take_rows(self, rows: Iterable[MetricRow]) -> None:
        """More rows, of whatever groups."""
        steps: defaultdict[str, list[int]] = defaultdict(list)
        for row in rows:
            steps[row.group].append(row.steps)
        for group in steps:
            self.take(group, steps[group])

    def join(self, other: FirstSteps) -> None:
        """Those of another rank of the run."""
        for group, first in other._first.items():
            self._first[group] = min(self._first.get(group, first), first)

    def span(self, run: int) -> Span:
        """The part of this run that decides about earlier runs."""
        others = dict(self._first)
        deciding = [others.pop(group) for group in _DECIDING if group in others]
        first = deciding[0] if deciding else math.inf
        return Span(run, self._resumed, first, min(others.values(), default=math.inf))


def last_valid_steps(spans: Sequence[Span]) -> dict[int, float]:
    """Up to which step each run's rows stand, given in the order of the runs.

    A run that resumed at step S and then reported takes over: earlier rows past S vanish, and
    if it reports from before S also those from its first report on. Nothing vanishes earlier.
    """
    others_decide = all(math.isinf(span.first) for span in spans)
    limits: dict[int, float] = {}
    bound = math.inf
    for span in reversed(spans):
        limits[span.run] = bound
        first = span.first_of_others if others_decide else span.first
        if math.isfinite(first):
            bound = min(bound, span.resumed if first >= span.resumed else first - 1)
    return limits


def clean_rows(rows: Iterable[MetricRow], limits: Mapping[int, float]) -> list[MetricRow]:
    """Rows that stand, by step; keys of the same group and step merge and the later one wins.

    Rows come in the order of runs and, inside a run, those of the highest rank first, each rank's
    in the order of reporting. So of several ranks the lowest one wins.
    """
    if any(map(math.isfinite, limits.values())):
        rows = (row for row in rows if row.steps <= limits[row.run])
    rows = rows if isinstance(rows, list) else list(rows)
    if ascending([row.steps for row in rows]):
        return rows
    merged: dict[tuple[str, int], MetricRow] = {}
    for row in rows:
        key = (row.group, row.steps)
        earlier = merged.get(key)
        merged[key] = row if earlier is None else _merge(earlier, row)
    return sorted(merged.values(), key=lambda row: row.steps)


def ascending(steps: Sequence[int]) -> bool:
    """Whether each is greater than the one before, as where nothing was repeated. A million are
    common, so this runs without a line of Python for each."""
    return all(map(lt, steps, islice(steps, 1, None)))


def _merge(earlier: MetricRow, later: MetricRow) -> MetricRow:
    return MetricRow(
        group=later.group,
        steps=later.steps,
        metrics={**earlier.metrics, **later.metrics},
        run=later.run,
        time=later.time if later.time is not None else earlier.time,
        batch=later.batch if later.batch is not None else earlier.batch,
        rank=later.rank,
    )


def flat(metrics: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Leaves of nested metrics with dotted names."""
    for name, value in metrics.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def is_number(value: Any) -> bool:
    """Whether a plot can show it."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_float(value: float) -> float:
    """The number as a float; an integer that is too large for a float is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
