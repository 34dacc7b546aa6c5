"""A trial's report of one step, with Determined's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from detslurm.sdk.deprecation import deprecated
from detslurm.store import MetricRow, TrialDir, metric_columns, trial_metrics

PROFILE_GROUPS = ("cpu", "memory", "disk", "network", "gpu")

_USUAL = frozenset({"training", "validation"})
"""Groups that a trial may yet report: asking for them early is no mistake."""


def moment(seconds: float | None) -> datetime | None:
    """A time in UTC; None if it is unknown."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def refuse_unknown(
    trials: Iterable[TrialDir], group: str | None, names: Sequence[str] | None = None
) -> None:
    """Raise `ValueError` for a mistyped group (None for all) or metric of which nothing was found;
    it lists the known ones. Trials that have reported nothing at all refuse nothing."""
    trials = list(trials)
    groups = sorted({row.group for trial in trials for row in trial_metrics(trial, None)})
    if group is not None and groups and group not in {*groups, *_USUAL}:
        raise ValueError(f"there is no group of metrics {group!r}; there are {', '.join(groups)}")
    if group in groups and names is not None:
        known = {name for trial in trials for name in metric_columns(trial, group).metrics}
        if known and (wrong := [name for name in names if name not in known]):
            raise ValueError(
                f"there is no metric {', '.join(map(repr, wrong))} in {group!r};"
                f" there are {', '.join(sorted(known))}"
            )


@dataclass(frozen=True)
class TrialMetrics:
    """Metrics that a trial reported in one group at one step.

    Attributes:
        trial_id: The trial's id.
        trial_run_id: The number of the run that reported them last.
        steps_completed: How many batches were trained.
        end_time: When they were reported; None if unknown.
        metrics: Values by name.
        group: The group, such as "training" or "validation".
        batch_metrics: The metrics of each batch, if they were reported; None by default.
        rank: The lowest rank that reported any of them; 0, the chief, by default.
    """

    trial_id: int
    trial_run_id: int
    steps_completed: int
    end_time: datetime | None
    metrics: dict[str, Any]
    group: str
    batch_metrics: list[dict[str, Any]] | None = None
    rank: int = 0

    @classmethod
    def of_row(cls, trial_id: int, row: MetricRow) -> TrialMetrics:
        """Return a `row` of the store, which the trial `trial_id` reported, as this."""
        when = moment(row.time)
        return cls(trial_id, row.run, row.steps, when, row.metrics, row.group, row.batch, row.rank)

    @property
    def total_batches(self) -> int:
        """The older name of `steps_completed`."""
        deprecated("TrialMetrics.total_batches", "steps_completed")
        return self.steps_completed


def metrics_of(trials: Iterable[TrialDir], group: str | None) -> Iterator[TrialMetrics]:
    """Yield the reports of several trials, trial by trial and step by step. Raises `ValueError` if
    none of them has the group (None for all) and some have others."""
    seen: list[TrialDir] = []
    empty = True
    for trial in trials:
        seen.append(trial)
        for row in trial_metrics(trial, group):
            empty = False
            yield TrialMetrics.of_row(trial.id, row)
    if empty:
        refuse_unknown(seen, group)
