"""Readable links to checkpoints in an experiment's directory: `best` and `latest`.

They are for people and scripts; detslurm never reads them. Any process of the experiment's owner
may write them. It replaces a link atomically as the facts imply and then looks again, so that
the last writer corrects a link that an older view gave.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from detslurm.store import fs
from detslurm.store.checkpoint_index import CheckpointRow, SavedCheckpoints
from detslurm.store.errors import StoreError
from detslurm.store.experiment import ExperimentDir
from detslurm.store.metric_rank import metric_rank
from detslurm.store.records import Created

_ATTEMPTS = 10


class Links(NamedTuple):
    """The targets of the links: ids of checkpoints, or their paths in a storage that is not the
    configured storage; None without a checkpoint."""

    best: str | None
    latest: str | None


def links_of(rows: Iterable[CheckpointRow], search: Created | SavedCheckpoints) -> Links:
    """The checkpoint with the best metric of the `search`, the earliest of equals, and the newest.

    With several objectives it is the best by the first metric, of those that keep all constraints.
    The rows of a trial come in their order: the clocks of two nodes may differ.
    """
    metric, whole = search.metric, [row for row in rows if row.state == "COMPLETED"]
    rated = [
        (metric_rank(value, search.smaller_is_better), row)
        for row in whole
        if metric is not None and not math.isnan(value := row.metrics.get(metric, math.nan))
    ]
    last_ones = {row.trial: row for row in whole}.values()
    newest = max(last_ones, key=lambda row: (row.time or 0.0, row.steps), default=None)
    first = min(rated, key=lambda pair: pair[0], default=None)
    best = first[1] if first else None
    if search.objectives is not None:
        best = search.objectives.comparison().best((row.metrics, row) for row in whole)
    return Links(_target(best) if best else None, _target(newest) if newest else None)


def _target(row: CheckpointRow) -> str | None:
    if row.storage is None:
        return row.uuid
    folder = row.storage.get("container_path")
    return f"{folder}/{row.uuid}" if folder is not None else None


def correct_links(experiment: ExperimentDir, base: Path, read: Callable[[], Links]) -> None:
    """Replace wrong links by what `read` returns now; a failure costs the links only."""
    with suppress(StoreError, OSError):
        # Relative, so that the store may be moved or mounted elsewhere; by the real place of both.
        up = os.path.relpath(base.resolve(), experiment.path.resolve())
        for _ in range(_ATTEMPTS):
            links = read()._asdict().items()
            changed = [_replace(experiment.path / name, up, target) for name, target in links]
            if not any(changed):
                return


def _replace(link: Path, up: str, target: str | None) -> bool:
    """Let a link lead to a target below the directory `up`; returns whether it was wrong."""
    wanted = target and os.path.join(up, target)  # noqa: PTH118 (a target may be absolute)
    try:
        if os.readlink(link) == wanted:  # noqa: PTH115
            return False
    except FileNotFoundError:
        if wanted is None:
            return False
    if wanted is None:
        link.unlink(missing_ok=True)
        return True
    fresh = fs.temporary_name(str(link))
    os.symlink(wanted, fresh)  # noqa: PTH211
    try:
        os.rename(fresh, link)  # noqa: PTH104
    except OSError:
        fs.discard(fresh)
        raise
    return True
