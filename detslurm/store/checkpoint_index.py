"""The index of checkpoints: one rebuildable file that finds those of finished experiments.

No search walks through directories: all that the index has costs one read, and of experiments that
are not finished, or that have changed since, the facts and logs are folded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from detslurm.store.curve import as_float, is_number
from detslurm.store.finished_rows import FinishedRows
from detslurm.store.objectives import SeveralObjectives
from detslurm.store.views import CheckpointView

if TYPE_CHECKING:
    from detslurm.store.store import Store

_SCHEMA: Final = 3


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint in short, as a line of a table: fields of its `CheckpointView`, which has files
    and metadata, too. `metrics` has only numbers."""

    uuid: str
    trial: int
    run: int
    steps: int
    time: float | None = None
    state: str = "COMPLETED"
    size: int = 0
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    problem: str | None = None
    storage: dict[str, Any] | None = None
    kind: str | None = None


class SavedCheckpoints(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The checkpoints of one experiment.

    Attributes:
        experiment: The experiment's id.
        rows: The checkpoints, by trial, oldest first.
        base: The directory of the configured storage; None where that is a bucket.
        where: The configured storage in words, without secrets.
        metric: The searcher's metric.
        smaller_is_better: Whether the best metric is the smallest.
        objectives: The metrics and constraints of its search, if one metric alone does not decide.
    """

    experiment: int
    rows: tuple[CheckpointRow, ...] = ()
    base: str | None = None
    where: str = ""
    metric: str | None = None
    smaller_is_better: bool = True
    objectives: SeveralObjectives | None = None


def row_of(view: CheckpointView) -> CheckpointRow:
    """The line of a table for a checkpoint."""
    values = {name: getattr(view, name) for name in CheckpointRow.__struct_fields__}
    values["metrics"] = {k: as_float(v) for k, v in view.metrics.items() if is_number(v)}
    return CheckpointRow(**values)


def checkpoint_index(store: Store) -> FinishedRows[SavedCheckpoints]:
    """The checkpoints of finished experiments, as far as they are known without folding."""
    path = store.own("checkpoints.json")
    return FinishedRows(path, store.ledger, SavedCheckpoints, schema=_SCHEMA)
