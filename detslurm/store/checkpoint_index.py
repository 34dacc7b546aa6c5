"""The index of checkpoints: one rebuildable file that finds those of finished experiments.

No search walks through directories: all that the index has costs one read, and of experiments that
are not finished, or that have changed since, the facts and logs are folded.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from detslurm.store import rebuildable
from detslurm.store.curve import as_float, is_number
from detslurm.store.finished_rows import FinishedRows
from detslurm.store.index import STALE_AFTER
from detslurm.store.ledger import Ledger
from detslurm.store.objectives import SeveralObjectives
from detslurm.store.views import CheckpointView

SCHEMA: Final = 3


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint in short, as a line of a table; files and metadata are in its `CheckpointView`.

    Attributes:
        uuid: Its storage id.
        trial: The id of the trial that saved it.
        run: The number of the run that saved it.
        steps: How many batches were trained.
        time: When it was committed, in seconds since 1970.
        state: "COMPLETED", "PARTIALLY_DELETED" or "DELETED".
        size: The bytes of all its files.
        files: How many files it has.
        metrics: The numeric validation metrics of exactly its weights.
        problem: The fault of its files that `verify` found; None if there is none.
        storage: The storage that it is in, where that is not the configured storage.
        kind: "outputs" or "batch outputs" for files that the trial's code has left; else None.
    """

    uuid: str
    trial: int
    run: int
    steps: int
    time: float | None = None
    state: str = "COMPLETED"
    size: int = 0
    files: int = 0
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    problem: str | None = None
    storage: dict[str, Any] | None = None
    kind: str | None = None


class SavedCheckpoints(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The checkpoints of one experiment.

    Attributes:
        experiment: The experiment's id.
        rows: Its checkpoints, by trial, oldest first.
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
    numbers = {k: as_float(v) for k, v in view.metrics.items() if is_number(v)}
    return CheckpointRow(
        uuid=view.uuid,
        trial=view.trial,
        run=view.run,
        steps=view.steps,
        time=view.time,
        state=view.state,
        size=view.size,
        files=sum(not name.endswith("/") for name in view.resources),
        metrics=numbers,
        problem=view.problem,
        storage=view.storage,
        kind=view.kind,
    )


class CheckpointIndex:
    """The checkpoints of finished experiments, as far as they are known without folding."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self._file = FinishedRows(path, ledger, SavedCheckpoints, schema=SCHEMA, moved=_moved)
        self.known = self._file.rows
        """The experiments whose checkpoints need not be folded again, by id."""

    @property
    def experiments(self) -> list[int]:
        """The ids of all experiments, ascending."""
        return self._file.ledger.experiments()

    @property
    def problems(self) -> list[str]:
        """The unreadable facts of the ledger."""
        return self._file.ledger.problems

    def settle(self, finished: Iterable[SavedCheckpoints]) -> None:
        """Take in the folds of finished experiments, and keep them for later readers."""
        news = {saved.experiment: saved for saved in finished}
        self.known.update(news)
        if news or self._file.tail >= STALE_AFTER:
            self._file.save()


def _moved(saved: SavedCheckpoints, old: str, new: str) -> SavedCheckpoints:
    if saved.base is None:
        return saved
    base, where = (rebuildable.relocated(path, old, new) for path in (saved.base, saved.where))
    return msgspec.structs.replace(saved, base=base, where=where)
