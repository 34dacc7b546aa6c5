"""A site's purge, which deletes files that were not used for some days."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from detslurm._base.quantities import counted
from detslurm.store import CheckpointView, ExperimentDir, ExperimentRow

_DAY: Final = 86400.0
NOTICE: Final = 7
"""Days before the purge from which people are warned."""


def days_left(used: float, purge_days: int, now: float) -> float:
    """Days until the purge of a file that was used last at `used`; negative once it is due."""
    return purge_days - (now - used) / _DAY


def purge_days() -> int | None:
    """After how many days this site deletes unused files; None if it doesn't, or is unknown."""
    from detslurm.config.errors import ConfigErrors
    from detslurm.config.site import load_site, profile_path

    try:
        profile = profile_path()
        # Each list asks: YAML and the schema of configurations are imported where it matters only.
        if profile is None or b"purge_days" not in profile.read_bytes():
            return None
        return load_site(profile).purge_days
    except (ConfigErrors, OSError):
        return None  # other readers of the profile report the error


def in_danger(rows: Iterable[ExperimentRow], after: int | None) -> list[int]:
    """Experiments that ended so long ago that their files may soon be purged."""
    if after is None:
        return []
    now = time.time()
    ended = ((row.id, row.ended) for row in rows if row.state != "DELETED")
    return [i for i, end in ended if end is not None and days_left(end, after, now) <= NOTICE]


def warning_for_list(numbers: list[int], after: int | None) -> str | None:
    """The warning in a list of experiments."""
    if not numbers:
        return None
    some = ", ".join(map(str, numbers[:5])) + (" ..." if len(numbers) > 5 else "")
    who = f"experiment {some}" if len(numbers) == 1 else f"{len(numbers)} experiments ({some})"
    return (
        f"{who} ended more than {counted((after or 0) - NOTICE, 'day')} ago, and this site deletes"
        f" files that were not used for {counted(after or 0, 'day')}:"
        " `detslurm experiment describe ID` looks at the files"
    )


def warnings_of(
    directory: ExperimentDir, checkpoints: Iterable[CheckpointView], after: int | None
) -> Iterator[str]:
    """A warning for each thing of an experiment that may soon be purged, by its files' times."""
    if after is None:
        return
    now = time.time()
    for what, path in _files(directory, checkpoints):
        used = _used(path)
        left = None if used is None else days_left(used, after, now)
        if left is not None and left <= NOTICE:
            when = f"in {counted(round(left), 'day')}" if left > 0 else "at any moment"
            yield f"the site's purge may delete {what} {when}: copy it, or use it"


def _files(
    directory: ExperimentDir, checkpoints: Iterable[CheckpointView]
) -> Iterator[tuple[str, Path]]:
    """Each thing with one file, whose time of use stands for the whole."""
    from detslurm.sdk.checkpoints.catalog import storages_of  # only here: lists do without it

    yield f"the records of experiment {directory.id}", directory.log.name(1)
    storages = storages_of(directory)
    for one in checkpoints:
        names = [name for name in one.resources if not name.endswith("/")]
        folder = storages.of(one.storage).direct(one.uuid)
        if names and folder is not None:
            yield f"checkpoint {one.uuid}", folder / min(names)


def _used(path: Path) -> float | None:
    """When a file was last read or written, as far as its file system keeps that."""
    try:
        state = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return max(state.st_atime, state.st_mtime)
