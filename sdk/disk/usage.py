"""The disk usage of experiments: from records and the sizes of files with known names.

Only TensorBoard's directories are walked. Finished experiments come from one rebuildable file.
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
    ExperimentRow,
    FinishedRows,
    Run,
    Store,
    StoreError,
    TrialDir,
    TrialView,
    fs,
)
from detslurm.store.reading import fold_facts, fold_trial, started_ids

SETTLED: Final = 3600.0
"""Seconds after its end for which an experiment may still be compacted and collected."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes by kind of file: `checkpoints` and frozen `code` as they were recorded, the `logs` of
    trials and jobs, `metrics` and other records, and TensorBoard's files beside the checkpoints."""

    checkpoints: int = 0
    logs: int = 0
    metrics: int = 0
    code: int = 0
    tensorboard: int = 0

    @property
    def total(self) -> int:
        """The sum of all kinds."""
        return sum(msgspec.structs.astuple(self))

    def __add__(self, other: Usage) -> Usage:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Usage(**dict(zip(Usage.__struct_fields__, map(sum, pairs), strict=True)))


class ExperimentUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The disk usage of one experiment."""

    id: int
    name: str
    owner: str
    state: str
    usage: Usage


def usage_of(directory: ExperimentDir) -> Usage:
    """The disk usage of an experiment now."""
    facts = fold_facts(directory)
    outputs = (directory.jobs / f"slurm-{job.job_id}.out" for job in facts.jobs)
    usage = Usage(
        metrics=_sizes([directory.metrics_path]) + tree_size(directory.search),
        logs=_sizes(set(outputs)),
        code=facts.created.code_bytes or 0,
    )
    configured = tensorboard_path(directory, storage_of(directory))
    for number in started_ids(directory, facts):
        trial = directory.trial(number)
        view = fold_trial(trial, facts.context(number))
        named = (tensorboard_path(directory, from_config(s)) for s in view.storages)
        usage += _trial(trial, view, {configured, *named})
    return usage


def _trial(trial: TrialDir, view: TrialView, folders: Iterable[Path | None]) -> Usage:
    runs = trial.runs()
    events = (folder / "trial" / str(trial.id) for folder in folders if folder is not None)
    return Usage(
        checkpoints=sum(c.size for c in view.checkpoints if c.state != "DELETED"),
        logs=_sizes(trial.log_path(run.number) for run in runs),
        metrics=_sizes(path for run in runs for path in _record_paths(trial, run)),
        tensorboard=sum(map(tree_size, events)) if fs.exists(trial.path) else 0,
    )


def _record_paths(trial: TrialDir, run: Run) -> Iterator[Path]:
    nodes = len(run.start.job.nodes) or 1
    paths = (trial.node_records_path(run.number, node) for node in range(nodes))
    ranks = (trial.rank_records_path(run.number, rank) for rank in run.ranks)
    artifacts = [trial.artifacts_path(run.number)]
    # An end record has the usage itself.
    return chain(paths, ranks, artifacts, [trial.usage_path(run.number)] if run.end is None else [])


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
            total += os.stat(path).st_size  # noqa: PTH116 (a size may be a moment old)
        except OSError:
            continue
    return total


def usage_of_store(store: Store, rows: Iterable[ExperimentRow]) -> Iterator[ExperimentUsage]:
    """The usage of each experiment; unreadable experiments are left out."""
    cache = FinishedRows(store.own("usage.json"), store.ledger, Usage, schema=1)
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
        cache.save()


def known_usage(store: Store) -> dict[int, Usage]:
    """The usage of finished experiments that was measured before and has not changed since."""
    return FinishedRows(store.own("usage.json"), store.ledger, Usage, schema=1).rows
