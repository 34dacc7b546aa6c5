"""Progress of what others do, while a command waits for it: a bar, or a line a minute in a log."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

import click

LINE_SECONDS: Final = 60.0
"""Between two lines where there is no terminal: a log of hours stays short."""


@contextmanager
def waiting() -> Iterator[Callable[[str, str, float], None]]:
    """Shows how far something is that others do; gets its state, a line, and the share from 0 to 1.

    Without a terminal a change of the state is printed at once, all else a minute apart.
    """
    if not sys.stderr.isatty():
        yield _WaitingLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeLeft())
    # It may take days: drawn rarely, and the time left goes by the last hour.
    with Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=1,
        speed_estimate_period=3600,
    ) as bar:
        task = bar.add_task("", total=1.0)

        def show(state: str, text: str, share: float) -> None:
            bar.update(task, description=text.replace("[", "\\["), completed=share)

        yield show


class _WaitingLines:
    """Prints changes of the state, and a line a minute."""

    def __init__(self) -> None:
        self._state: str | None = None
        self._printed = 0.0

    def __call__(self, state: str, text: str, share: float) -> None:
        now = monotonic()
        if state != self._state or now - self._printed >= LINE_SECONDS:
            self._state, self._printed = state, now
            click.echo(text, err=True)


class BottomLine:
    """A line that stays below other output to a terminal; elsewhere a line a minute.

    Args:
        text: Makes the line.
    """

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._on_terminal = sys.stderr.isatty() and sys.stdout.isatty()
        self._shown = False
        self._printed = monotonic()

    def show(self) -> None:
        """Write it, or write it again."""
        if self._on_terminal:
            self.clear()
            # No longer than a line: a wrapped text can't be taken away.
            click.echo(self._text()[: shutil.get_terminal_size().columns - 1], nl=False, err=True)
            self._shown = True
        elif monotonic() - self._printed >= LINE_SECONDS:
            self._printed = monotonic()
            click.echo(self._text(), err=True)

    def clear(self) -> None:
        """Take it away, so that something else can be printed."""
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._shown = False
