"""Tables: coloured and fitted to the width of a terminal; complete and plain everywhere else."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from detslurm.cli.output.human import (
    ago,
    has_blocks,
    local_time,
    number,
    on_terminal,
    rfc3339,
    size,
)

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text

Kind = Literal["text", "time", "clock", "size", "share", "state"]

_OBEYED = re.compile(r"(\x1b\[[\d;:]*m)|[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_GAP = 2  # cells between two columns
_BAR = 8  # cells of a share's bar
# Colours distinguish at a glance running, ended and failed.
_STATE_STYLES = {
    "ACTIVE": "cyan",
    "RUNNING": "cyan",
    "QUEUED": "yellow",
    "PULLING": "yellow",
    "STARTING": "yellow",
    "PAUSED": "magenta",
    "COMPLETED": "green",
    "CANCELED": "bright_black",
    "DELETED": "bright_black",
    "PARTIALLY_DELETED": "yellow",
    "ERROR": "red",
    "LOST": "red",
    "UNKNOWN": "red",
}


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        header: Its title, also in CSV.
        value: The value of a row there.
        kind: The kind of value: text (and numbers), a time or a clock (seconds since 1970; people
            see how long ago a time was, and when it was on a clock), a size (bytes), a share
            (0 to 1) or a state.
        drop: Columns with the highest number are left out first where a terminal is too narrow;
            those with 0 never.
        least: The column may be cut to this number of cells, with an ellipsis; by default it is
            not.
        csv_header: Its title in CSV, by default `header`.
        csv_only: Whether it stands in CSV alone.
        csv_value: The value of a row there in CSV, where `value` is words or rounded; by default
            `value`.
    """

    header: str
    value: Callable[[Any], Any]
    kind: Kind = "text"
    drop: int = 0
    least: int | None = None
    csv_header: str = ""
    csv_only: bool = False
    csv_value: Callable[[Any], Any] | None = None

    def cell(self, row: Any, *, relative: bool) -> str:
        """A row's value for people; times as "3 hours ago", or as local times."""
        value = self.value(row)
        if value is None or value == "":
            return ""
        if self.kind in ("time", "clock"):
            return ago(value) if relative and self.kind == "time" else local_time(value)
        if self.kind == "size":
            return size(value)
        return f"{100 * value:.0f}%" if self.kind == "share" else number(value)

    def csv(self, row: Any) -> Any:
        """A row's value for programs: times as RFC 3339, sizes in bytes, shares from 0 to 1."""
        value = (self.csv_value or self.value)(row)
        return rfc3339(value) if self.kind in ("time", "clock") and value is not None else value


class Fit(NamedTuple):
    """The shown columns, by their places, and the width of each."""

    shown: tuple[int, ...]
    widths: tuple[int, ...]


def fit(columns: Sequence[Column], widths: Sequence[int], available: int) -> Fit:
    """Choose columns and their widths so that a line has at most `available` cells.

    Columns that may be cut are cut first, then columns are left out.
    """
    shown = list(range(len(columns)))
    while True:
        needed = [min(widths[n], columns[n].least or widths[n]) for n in shown]
        spare = available - sum(needed) - _GAP * (len(shown) - 1)
        droppable = [n for n in shown if columns[n].drop]
        if spare >= 0 or not droppable:
            break
        shown.remove(max(droppable, key=lambda n: (columns[n].drop, n)))
    for place, n in enumerate(shown):
        more = min(max(spare, 0), widths[n] - needed[place])
        needed[place] += more
        spare -= more
    return Fit(tuple(shown), tuple(needed))


def columns_text(columns: Sequence[Column], rows: Sequence[Any], *, whole: bool = False) -> str:
    """A table of rows: fitted to the terminal, or complete (`whole`, and off a terminal)."""
    columns = [c._replace(header=_one_line(c.header)) for c in columns if not c.csv_only]
    if not on_terminal():
        cells = [[column.cell(row, relative=False) for column in columns] for row in rows]
        return aligned([column.header for column in columns], cells)
    from rich.text import Text

    cells = [[printable(column.cell(row, relative=True)) for column in columns] for row in rows]
    widths = _natural([column.header for column in columns], cells)
    width = terminal_width()
    fitted = fit(columns, widths, width)
    if whole:
        fitted = Fit(tuple(range(len(columns))), tuple(widths))
        width = max(width, sum(widths) + _GAP * len(widths))
    fitted = _with_bars(columns, rows, cells, fitted, width)
    table = _rich_table()
    for n, cut in zip(fitted.shown, fitted.widths, strict=True):
        right = _numeric(row[n] for row in cells)
        table.add_column(
            Text(columns[n].header),  # of a text rich would obey what stands in brackets
            justify="right" if right else "left",
            width=cut,
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in cells:
        table.add_row(*[_styled(row[n], columns[n].kind) for n in fitted.shown])
    return _rendered(table, width)


def _with_bars(
    columns: Sequence[Column], rows: Sequence[Any], cells: list[list[str]], fitted: Fit, width: int
) -> Fit:
    """Put bars beside the shares that are not whole, where the lines have room left for them."""
    spare = width - sum(fitted.widths) - _GAP * (len(fitted.shown) - 1)
    places = [place for place, n in enumerate(fitted.shown) if columns[n].kind == "share"]
    if not places or spare < _BAR + 1 or not has_blocks():
        return fitted
    from detslurm.look.plot import progress_bar

    place, widths = places[0], list(fitted.widths)
    column = fitted.shown[place]
    for row, line in zip(rows, cells, strict=True):
        share = columns[column].value(row)
        bar = "" if share is None or share >= 1 else f" {progress_bar(share, _BAR)}"
        line[column] = f"{line[column]:>4}{bar}"
    if any(len(line[column]) > 4 for line in cells):
        widths[place] = max(widths[place], 4 + 1 + _BAR)
    return Fit(fitted.shown, tuple(widths))


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table whose columns all matter: on a terminal that is too narrow, cells are folded."""
    headers = [_one_line(header) for header in headers]
    cells = [[number(cell) for cell in row] for row in rows]
    if not on_terminal():
        return aligned(headers, cells)
    from rich.text import Text

    result = _rich_table()
    right = [_numeric(texts) for texts in zip(*cells, strict=True)]
    for header, flush in zip(headers, right or [False] * len(headers), strict=True):
        result.add_column(Text(header), justify="right" if flush else "left", overflow="fold")
    for row in cells:
        result.add_row(*[_styled(printable(text), "state") for text in row])
    return _rendered(result, terminal_width())


def terminal_width() -> int:
    """The cells of a line of the terminal."""
    return max(20, shutil.get_terminal_size().columns)


def printable(text: str) -> str:
    """The text without characters that a terminal would obey."""
    return "".join(c if c == "\n" or c.isprintable() else "?" for c in text)


def _one_line(text: str) -> str:
    """The same of a title, which may be the name of a metric."""
    return printable(text).replace("\n", "?")


def log_line(text: str) -> str:
    """A line of a log for a terminal: of what one would obey, colours and tabs alone are left."""
    return _OBEYED.sub(lambda found: found[1] or "?", text)


def aligned(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns in plain text, in the style that Determined's users know; never cut."""
    lines = [line for row in rows for line in _lines_of(row)]
    by_column = list(zip(headers, *lines, strict=True))
    widths = [max(map(cells_of, texts)) for texts in by_column]
    padded = [
        [texts[0].ljust(width + len(texts[0]) - cells_of(texts[0])), *_padded(texts[1:], width)]
        for texts, width in zip(by_column, widths, strict=True)
    ]
    head, *body = [f" {' | '.join(texts)}".rstrip() for texts in zip(*padded, strict=True)]
    return "\n".join([head, "+".join("-" * (width + 2) for width in widths), *body])


def _lines_of(row: Sequence[str]) -> Iterable[Sequence[str]]:
    """A row as lines of text: cells may have several."""
    if all(text.isprintable() for text in row):
        return (row,)
    return zip_longest(*(text.splitlines() for text in row), fillvalue="")


def _padded(texts: Sequence[str], width: int) -> Iterable[str]:
    """A column's cells, all of that width; numbers stand on the right."""
    spaces = (" " * (width - cells_of(text)) for text in texts)
    if _numeric(texts):
        return (space + text for space, text in zip(spaces, texts, strict=True))
    return (text + space for space, text in zip(spaces, texts, strict=True))


def cells_of(text: str) -> int:
    """How many cells of a terminal a text takes: wide East Asian characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _natural(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    widths = [cells_of(header) for header in headers]
    for row in rows:
        for n, text in enumerate(row):
            widths[n] = max(widths[n], *map(cells_of, text.split("\n")))
    return widths


def _numeric(texts: Iterable[str]) -> bool:
    found = [text for text in texts if text]
    return bool(found) and all(text.replace(".", "", 1).strip("-+%").isdigit() for text in found)


def _rich_table() -> RichTable:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)


def _styled(text: str, kind: Kind) -> Text:
    from rich.text import Text

    style = _STATE_STYLES.get(text.partition(" ")[0], "") if kind == "state" else ""
    if kind == "state" and text.startswith("STOPPING"):
        style = "yellow"
    return Text(text, style=style)


def _rendered(table: RichTable, width: int) -> str:
    """With the colours that the terminal has and NO_COLOR allows."""
    from rich.console import Console

    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n"))
