"""Progress on stderr: a bar on a terminal, a line a minute in a log."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from detslurm._base.quantities import human_size

_A_LINE_EVERY = 60.0  # seconds


def _lines(what: str, quantity: Callable[[int], str]) -> Callable[[int, int], None]:
    """Print progress as lines: the first one after a minute, so that short work prints none."""
    last = monotonic()

    def show(done: int, whole: int) -> None:
        nonlocal last
        if (now := monotonic()) - last < _A_LINE_EVERY:
            return
        last = now
        share = 100 * done // max(whole, 1)
        print(
            f"{what}: {quantity(done)} of {quantity(whole)} ({share} %)",
            file=sys.stderr,
            flush=True,
        )

    return show


def _silent(done: int, whole: int) -> None:
    pass


@contextmanager
def transfer(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Shows bytes, their rate and the remaining time; gets the bytes done, and the whole."""
    if quiet or not sys.stderr.isatty():
        yield _silent if quiet else _lines(what, human_size)
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
def one_by_one(what: str, whole: int) -> Iterator[Callable[[], None]]:
    """Shows how many of something are done, and the time that is left; called for each."""
    done = itertools.count(1)
    with steps(what, quiet=whole < 2) as progress:
        yield lambda: progress(next(done), whole)


@contextmanager
def steps(what: str, *, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """As `one_by_one`; gets the number done, and the whole."""
    if quiet or not sys.stderr.isatty():
        yield _silent if quiet else _lines(what, str)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1)  # without a total and colours, rich draws a full bar
        yield lambda done, whole: bar.update(task, completed=done, total=whole)
