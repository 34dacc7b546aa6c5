"""Progress on stderr: a bar on a terminal, a line a minute in a log."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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


@contextmanager
def _shown(what: str, *, in_bytes: bool, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    if quiet or not sys.stderr.isatty():
        yield (lambda done, whole: None) if quiet else _lines(what, human_size if in_bytes else str)
        return
    from rich import progress as rich_progress  # lists have no use for it
    from rich.console import Console

    columns = rich_progress.Progress.get_default_columns()
    if in_bytes:
        columns = (
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(bar_width=None),
            rich_progress.DownloadColumn(binary_units=True),
            rich_progress.TransferSpeedColumn(),
            rich_progress.TimeRemainingColumn(),
        )
    console = Console(stderr=True)
    with rich_progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=1)  # without a total and colours, rich draws a full bar
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


def transfer(
    what: str, *, quiet: bool = False
) -> AbstractContextManager[Callable[[int, int], None]]:
    """Shows bytes, their rate and the remaining time; gets the bytes done, and the whole."""
    return _shown(what, in_bytes=True, quiet=quiet)


def steps(what: str, *, quiet: bool = False) -> AbstractContextManager[Callable[[int, int], None]]:
    """Shows how many of something are done; gets the number done, and the whole."""
    return _shown(what, in_bytes=False, quiet=quiet)


@contextmanager
def one_by_one(what: str, whole: int) -> Iterator[Callable[[], None]]:
    """As `steps`; called for each."""
    done = itertools.count(1)
    with steps(what, quiet=whole < 2) as progress:
        yield lambda: progress(next(done), whole)
