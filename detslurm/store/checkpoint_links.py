"""Readable links to checkpoints in an experiment's directory: `best` and `latest`.

They are for people and scripts; nothing here reads them. Any process of the experiment's owner may
write them: its workers when a trial ends and now and then while one runs, commands that list or
delete its checkpoints. Each replaces a link atomically by what the facts say, and then looks again:
whoever comes last with an old view sees that, and mends it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from detslurm.store import fs
from detslurm.store.checkpoint_index import CheckpointRow
from detslurm.store.errors import StoreError
from detslurm.store.experiment import ExperimentDir
from detslurm.store.metric_rank import metric_rank

_ATTEMPTS = 10


class Links(NamedTuple):
    """Where the links lead: the ids of checkpoints, or their paths in a storage that is not the
    configured one; None where there is none."""

    best: str | None
    latest: str | None


def chosen(rows: Iterable[CheckpointRow], metric: str | None, *, smaller_is_better: bool) -> Links:
    """The checkpoint with the best searcher metric, the earliest of equals, and the newest one.

    Those of a trial come in their order, which the clocks of two nodes may not tell.
    """
    whole = [row for row in rows if row.state == "COMPLETED"]
    rated = [
        (metric_rank(value, smaller_is_better), row)
        for row in whole
        if metric is not None and not math.isnan(value := row.metrics.get(metric, math.nan))
    ]
    last_ones = {row.trial: row for row in whole}.values()
    newest = max(last_ones, key=lambda row: (row.time or 0.0, row.steps), default=None)
    best = min(rated, key=lambda pair: pair[0], default=None)
    return Links(_place(best[1]) if best else None, _place(newest) if newest else None)


def _place(row: CheckpointRow) -> str | None:
    if row.storage is None:
        return row.uuid
    folder = row.storage.get("container_path")
    return f"{folder}/{row.uuid}" if folder is not None else None


def keep_right(experiment: ExperimentDir, base: Path, read: Callable[[], Links]) -> None:
    """Let the links be what `read` says now; a failure costs the links only."""
    with suppress(StoreError, OSError):
        for _ in range(_ATTEMPTS):
            if not _write(experiment, base, read()):
                return


def _write(experiment: ExperimentDir, base: Path, links: Links) -> bool:
    """Replace the links that are wrong; whether there were any."""
    # Relative, so that the store may be moved or mounted elsewhere; by the real place of both.
    up = os.path.relpath(base.resolve(), experiment.path.resolve())
    places = links._asdict().items()
    wanted = {name: place and os.path.join(up, place) for name, place in places}  # noqa: PTH118
    changed = [_replace(experiment.path / name, target) for name, target in wanted.items()]
    return any(changed)


def _replace(link: Path, target: str | None) -> bool:
    try:
        found: str | None = os.readlink(link)  # noqa: PTH115
    except FileNotFoundError:
        found = None
    if found == target:
        return False
    if target is None:
        link.unlink(missing_ok=True)
        return True
    fresh = fs.temporary_name(str(link))
    os.symlink(target, fresh)  # noqa: PTH211
    try:
        os.rename(fresh, link)  # noqa: PTH104
    except OSError:
        fs.discard(fresh)
        raise
    return True
