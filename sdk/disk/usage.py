"""What experiments take on disk: from records and by the sizes of files with known names.

Nothing is searched. What was saved is added up from the records of checkpoints, and finished
experiments come from one rebuildable file, so that a thousand of them are one look.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from detslurm.sdk.checkpoints.catalog import storage_of
from detslurm.sdk.disk.leftovers import tree_size
from detslurm.storage import SharedFS, Storage, from_config
from detslurm.storage.interface import tensorboard_folder
from detslurm.store import (
    ExperimentDir,
    ExperimentFacts,
    ExperimentRow,
    Store,
    StoreError,
    TrialView,
    fs,
    rebuildable,
)
from detslurm.store.ledger import LedgerState
from detslurm.store.reading import fold_facts, fold_trial, started_ids
from detslurm.store.trial import Run, TrialDir

# What has just ended may still be compacted and collected.
SETTLED: Final = 3600.0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes by kind of file.

    Attributes:
        checkpoints: Of checkpoints that were not deleted, as they were recorded.
        logs: Of what trials and jobs have printed.
        metrics: Of reported metrics and records, with their compacted form.
        code: Of the frozen code, as it was recorded.
        tensorboard: Of TensorBoard's files beside the checkpoints.
    """

    checkpoints: int = 0
    logs: int = 0
    metrics: int = 0
    code: int = 0
    tensorboard: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(msgspec.structs.astuple(self))

    def plus(self, other: Usage) -> Usage:
        """Both together."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Usage(**dict(zip(Usage.__struct_fields__, map(sum, pairs), strict=True)))


class ExperimentUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one experiment takes.

    Attributes:
        id: Its id.
        name: Its name.
        owner: The user who submitted it.
        state: Its state, such as "COMPLETED".
        usage: Its bytes by kind of file.
    """

    id: int
    name: str
    owner: str
    state: str
    usage: Usage


def usage_of(directory: ExperimentDir) -> Usage:
    """What an experiment takes now."""
    facts = fold_facts(directory)
    found = Usage(
        metrics=_sizes([directory.metrics_path]) + tree_size(directory.search),
        logs=_sizes(_job_outputs(directory, facts)),
        code=facts.created.code_bytes or 0,
    )
    configured = tensorboard_path(directory, storage_of(directory))
    for number in started_ids(directory, facts):
        trial = directory.trial(number)
        view = fold_trial(trial, facts.context(number))
        named = (tensorboard_path(directory, from_config(s)) for s in view.storages)
        folders = [configured, *named]
        found = found.plus(_trial(trial, view)).plus(_event_files(trial, folders))
    return found


def _event_files(trial: TrialDir, folders: Iterable[Path | None]) -> Usage:
    there = {folder / "trial" / str(trial.id) for folder in folders if folder is not None}
    sizes = (tree_size(folder) for folder in there if fs.exists(trial.path))
    return Usage(tensorboard=sum(sizes))


def _trial(trial: TrialDir, view: TrialView) -> Usage:
    runs = trial.runs()
    return Usage(
        checkpoints=sum(c.size for c in view.checkpoints if c.state != "DELETED"),
        logs=_sizes(trial.log_path(run.number) for run in runs),
        metrics=_sizes(path for run in runs for path in _record_paths(trial, run)),
    )


def _record_paths(trial: TrialDir, run: Run) -> Iterator[Path]:
    nodes = len((run.start.get("job") or {}).get("nodes") or ()) or 1
    paths = (trial.node_records_path(run.number, node) for node in range(nodes))
    ranks = (trial.rank_records_path(run.number, rank) for rank in run.ranks)
    artifacts = [trial.artifacts_path(run.number)]
    # Where there is an end record, that has it.
    return chain(paths, ranks, artifacts, [trial.usage_path(run.number)] if run.end is None else [])


def _job_outputs(directory: ExperimentDir, facts: ExperimentFacts) -> Iterator[Path]:
    ids = dict.fromkeys(job.job_id for job in facts.jobs)
    return (directory.jobs / f"slurm-{number}.out" for number in ids)


def tensorboard_path(directory: ExperimentDir, storage: Storage | None) -> Path | None:
    """The folder of an experiment's TensorBoard files in a storage, if this machine sees it."""
    if not isinstance(storage, SharedFS):
        return None
    path = storage.base / tensorboard_folder(directory.id, directory.mark_in(storage.base))
    # Path.is_dir would raise where the folder above is another user's.
    return path if os.path.isdir(path) else None  # noqa: PTH112


def _sizes(paths: Iterable[Path]) -> int:
    total = 0
    for path in paths:
        try:
            total += os.stat(path).st_size  # noqa: PTH116 (a size that is a moment old will do)
        except OSError:
            continue
    return total


class _Cache(msgspec.Struct):
    """Rows of finished experiments, as of a position of the ledger."""

    position: int = 0
    rows: dict[int, Usage] = msgspec.field(default_factory=dict)


def usage_of_store(store: Store, rows: Iterable[ExperimentRow]) -> Iterator[ExperimentUsage]:
    """What each experiment takes; what can't be read is left out."""
    cache = _load(store)
    known = len(cache.rows)
    for row in rows:
        usage = cache.rows.get(row.id)
        if usage is None:
            try:
                usage = usage_of(store.experiment(row.id))
            except StoreError:
                continue
            if row.finished and row.ended is not None and time.time() - row.ended > SETTLED:
                cache.rows[row.id] = usage
        yield ExperimentUsage(
            id=row.id, name=row.name, owner=row.owner, state=row.state, usage=usage
        )
    if len(cache.rows) > known:
        rebuildable.save(_path(store), cache, sync=False)


def _path(store: Store) -> Path:
    return store.own("usage.json")


def _load(store: Store) -> _Cache:
    """The rows that still hold: whoever changes a finished experiment adds to the ledger."""
    cache = rebuildable.load(_path(store), _Cache) or _Cache()
    state = LedgerState(position=cache.position)
    for experiment in store.ledger.catch_up(state):
        cache.rows.pop(experiment, None)
    if not state.refused:  # else what can't be read now would be left out for good
        cache.position = state.position
    return cache
