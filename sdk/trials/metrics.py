"""What a trial reported at one step, with Determined's names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from detslurm.sdk.deprecation import deprecated
from detslurm.store import MetricRow


def moment(seconds: float | None) -> datetime | None:
    """A time in UTC; None if it is unknown."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


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
        """Return a row of the store as this.

        Args:
            trial_id: The trial that reported it.
            row: The row.
        """
        when = moment(row.time)
        return cls(trial_id, row.run, row.steps, when, row.metrics, row.group, row.batch, row.rank)

    @property
    def total_batches(self) -> int:
        """The older name of `steps_completed`."""
        deprecated("TrialMetrics.total_batches", "steps_completed")
        return self.steps_completed
