"""Progress bars on stderr, where somebody looks at it; anywhere else nothing is printed."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def _watched(quiet: bool) -> bool:
    return not quiet and sys.stderr.isatty()


@contextmanager
def transfer(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Shows bytes, their rate and the time that is left; gets what is done, and the whole."""
    if not _watched(quiet):
        yield lambda done, whole: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        tasks: list[TaskID] = []  # the first call knows the whole: nothing is shown before

        def show(done: int, whole: int) -> None:
            if not tasks:
                tasks.append(bar.add_task(what, total=whole))
            bar.update(tasks[0], completed=done, total=whole)

        yield show


@contextmanager
def one_by_one(what: str, whole: int, *, quiet: bool = False) -> Iterator[Callable[[], None]]:
    """Shows how many of something are done, and the time that is left; called for each."""
    done = itertools.count(1)
    with steps(what, quiet=quiet or whole < 2) as progress:
        yield lambda: progress(next(done), whole)


@contextmanager
def steps(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """As `one_by_one`; gets what is done, and the whole."""
    if not _watched(quiet):
        yield lambda done, whole: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)
