"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_TIMES = frozenset({"created", "started", "ended", "submitted", "time"})

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def note(text: str) -> None:
    """Print a message on stderr, where it never mixes with results."""
    click.echo(text, err=True)


def warn(text: str) -> None:
    """Print a warning on stderr; the command continues."""
    click.secho(f"warning: {text}", err=True, fg="yellow")


def print_json(value: Any) -> None:
    """One JSON document: times as RFC 3339 in UTC, NaN and infinities as text."""
    import json

    click.echo(json.dumps(plain(value), indent=2, ensure_ascii=not _unicode()))


def json_line(value: Any) -> None:
    """One JSON document on a line of its own."""
    import json

    click.echo(json.dumps(plain(value), ensure_ascii=not _unicode()))


def _unicode() -> bool:
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"


def plain(value: Any, key: str = "") -> Any:
    """Plain data for JSON out of views, tuples, sets and numbers of every kind."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return rfc3339(value) if key in _TIMES else value
    if isinstance(value, Mapping):
        return {str(name): plain(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if hasattr(value, "__struct_fields__"):
        names = value.__struct_fields__
        return {name: plain(getattr(value, name), name) for name in names}
    return value


def rfc3339(seconds: float) -> str:
    """A moment in UTC, as logs and JSON show it."""
    whole = math.floor(seconds)
    micros = int((seconds - whole) * 1e6)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{micros:06d}Z"


def local_time(seconds: float | None) -> str:
    """A moment in the user's own time zone, as tables show it."""
    if seconds is None:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S%z", time.localtime(seconds))


def number(value: Any) -> str:
    """A number as tables show it: enough digits to compare, no more."""
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Aligned columns in the style that Determined's users know; nothing is ever cut off."""
    cells = [[_lines(cell) for cell in row] for row in rows]
    right = [_numeric(rows_of) for rows_of in zip(*cells, strict=True)] or [False] * len(headers)
    widths = [
        max([len(header), *(len(line) for row in cells for line in row[column])])
        for column, header in enumerate(headers)
    ]
    out = [_line(list(headers), widths, [False] * len(headers))]
    out.append("+".join("-" * (width + 2) for width in widths))
    for row in cells:
        for height in range(max(len(cell) for cell in row)):
            texts = [cell[height] if height < len(cell) else "" for cell in row]
            out.append(_line(texts, widths, right))
    return "\n".join(out)


def _lines(cell: Any) -> list[str]:
    text = number(cell)
    return text.splitlines() or [""]


def _numeric(cells: Iterable[list[str]]) -> bool:
    texts = [line for cell in cells for line in cell if line]
    return bool(texts) and all(text.replace(".", "", 1).strip("-+%").isdigit() for text in texts)


def _line(texts: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = (
        text.rjust(width) if flush else text.ljust(width)
        for text, width, flush in zip(texts, widths, right, strict=True)
    )
    return (" " + " | ".join(parts)).rstrip()


def print_table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table."""
    click.echo(table(headers, rows))


def print_csv(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print CSV: numbers with all their digits, lists as JSON."""
    import csv
    import io
    import json

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headers)
    for row in rows:
        cells = (plain(cell) for cell in row)
        writer.writerow([json.dumps(c) if isinstance(c, (list, dict)) else c for c in cells])
    click.echo(text.getvalue(), nl=False)


def human_time(seconds: float) -> str:
    """A span of time for people: its two largest units."""
    parts: list[str] = []
    rest = round(seconds)
    for name, size in (("d", 86400), ("h", 3600), ("min", 60)):
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {name}")
    parts.append(f"{rest} s" if seconds >= 1 or not seconds else f"{seconds:.2g} s")
    return " ".join(parts[:2])
