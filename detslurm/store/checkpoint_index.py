"""The index of checkpoints: one rebuildable file that finds those of finished experiments.

Nothing is ever looked for by walking through directories: what is in the index costs one read, and
of experiments that are not finished, or that have changed since, the facts and logs are folded.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from detslurm.store import rebuildable
from detslurm.store.curve import as_float, is_number
from detslurm.store.index import STALE_AFTER
from detslurm.store.ledger import Ledger, LedgerState
from detslurm.store.views import CheckpointView

SCHEMA: Final = 2  # 1: in a copy, checkpoints of own scripts were the original's


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
        problem: What `verify` found wrong with its files; None if nothing.
        storage: The storage that it is in, where that is not the configured one.
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


class SavedCheckpoints(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The checkpoints of one experiment.

    Attributes:
        experiment: The experiment's id.
        rows: Its checkpoints, by trial, oldest first.
        base: The directory of the configured storage; None where that is a bucket.
        where: The configured storage in words, without secrets.
        metric: The searcher's metric.
        smaller_is_better: Whether the best metric is the smallest.
    """

    experiment: int
    rows: tuple[CheckpointRow, ...] = ()
    base: str | None = None
    where: str = ""
    metric: str | None = None
    smaller_is_better: bool = True


class _Content(msgspec.Struct):
    ledger: LedgerState = msgspec.field(default_factory=LedgerState)
    experiments: list[SavedCheckpoints] = msgspec.field(default_factory=list)
    root: str = ""  # of the store: it may have been moved or copied since
    schema: int = SCHEMA


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
    )


class CheckpointIndex:
    """What is known of the checkpoints of finished experiments.

    The ledger is read before anything that is folded for it, and whoever changes a finished
    experiment adds to the ledger afterwards: so no line here can hide a later fact.
    """

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self._path = path
        content = _load(path)
        self.known = {saved.experiment: saved for saved in content.experiments}
        """The experiments whose checkpoints need not be folded again, by id."""
        self._ledger = content.ledger
        read = self._ledger.position
        for experiment in ledger.catch_up(self._ledger):
            self.known.pop(experiment, None)
        self._tail = self._ledger.position - read

    @property
    def experiments(self) -> list[int]:
        """The ids of all experiments, ascending."""
        return self._ledger.experiments()

    @property
    def problems(self) -> list[str]:
        """What could not be read of the ledger."""
        return self._ledger.problems

    def settle(self, finished: Iterable[SavedCheckpoints]) -> None:
        """Take in what was folded of finished experiments, and keep it for later readers."""
        news = {saved.experiment: saved for saved in finished}
        self.known.update(news)
        if news or self._tail >= STALE_AFTER:
            self._save()

    def _save(self) -> None:
        if self._ledger.refused:
            return  # what can't be read now would be left out for good
        root = str(self._path.parent)
        rebuildable.save(self._path, _Content(self._ledger, list(self.known.values()), root))


def _load(path: Path) -> _Content:
    content = rebuildable.load(path, _Content)
    if content is None or content.schema != SCHEMA:
        return _Content()
    old, new = content.root, str(path.parent)
    if old and old != new:
        content.experiments = [_relocated(saved, old, new) for saved in content.experiments]
    return content


def _relocated(saved: SavedCheckpoints, old: str, new: str) -> SavedCheckpoints:
    if saved.base is None:
        return saved
    base, where = (rebuildable.relocated(path, old, new) for path in (saved.base, saved.where))
    return msgspec.structs.replace(saved, base=base, where=where)
