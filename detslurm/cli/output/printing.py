"""The output of commands: results on stdout, everything else on stderr.

A command that shows rows returns a `Table` and is decorated by `shows`, which adds --json, --yaml,
--csv and --table and prints it; any other command returns a `Document` and is decorated
by `describes`. JSON is one envelope: `schema_version`, `data` and `errors`.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import click

from detslurm._base.display import spreadsheet_text
from detslurm.cli.output.human import human_time as human_time
from detslurm.cli.output.human import local_time as local_time
from detslurm.cli.output.human import number as number
from detslurm.cli.output.human import on_terminal
from detslurm.cli.output.human import rfc3339 as rfc3339
from detslurm.cli.output.human import size as size
from detslurm.cli.output.tables import Column as Column
from detslurm.cli.output.tables import columns_text
from detslurm.cli.output.tables import table as table
from detslurm.cli.session import Session, session

SCHEMA_VERSION = 1
_AT_ONCE = 500  # rows of JSON
_TIMES = frozenset(
    {"as_of", "begun", "created", "deleted_time", "ended", "expected_start", "made", "newest",
     "started", "submitted", "time", "updated"}
)  # fmt: skip
# Names of users: none of them gives a value's kind.
_GIVEN = frozenset(
    {"config", "data", "fields", "hparams", "hyperparameters", "metadata", "metrics", "resources",
     "summary_metrics", "validation_metrics"}
)  # fmt: skip

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_csv_option = click.option("--csv", "as_csv", is_flag=True, help="Print the rows as CSV.")
_yaml_option = click.option("--yaml", "as_yaml", is_flag=True, help="Print the result as YAML.")
_table_option = click.option(
    "--table", "as_table", is_flag=True, help="Print all columns of the table, however wide it is."
)


@dataclass(frozen=True)
class Table:
    """Rows to show.

    Attributes:
        columns: The columns of the table and of the CSV.
        rows: One object a row.
        data: The rows for JSON; by default `rows` themselves.
        wanted: Whether the user chose these columns: all of them are shown then.
        text: Text for people in place of the table; --table still prints the table.
    """

    columns: Sequence[Column]
    rows: Sequence[Any]
    data: Callable[[], Any] | None = None
    wanted: bool = False
    text: Callable[[], str] | None = None


class UserData(NamedTuple):
    """A user's own data as a document for JSON: no name in it gives a value's kind."""

    value: Any


@dataclass(frozen=True)
class Document:
    """Something to show that is not a table.

    Attributes:
        text: Makes the text for people.
        data: Makes the data for JSON.
        failed: Whether the exit status is 1.
    """

    text: Callable[[], str]
    data: Callable[[], Any]
    failed: bool = False


def shows(command: Callable[..., Table | None]) -> Callable[..., None]:
    """Print the `Table` that a command returns, by --json, --yaml, --csv and --table.

    It stands below all other decorators. A command that returns None has printed everything.
    """

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> None:
        kinds = ("json", "yaml", "csv", "table")
        chosen = {f"--{kind}": options.pop(f"as_{kind}") for kind in kinds}
        names = [name for name, given in chosen.items() if given]
        if len(names) > 1:
            raise click.UsageError(f"{names[0]} can't be combined with {names[1]}")
        found = command(*args, **options)
        if found is not None:
            _print_shown(found, names[0] if names else "")

    return json_option(_yaml_option(_csv_option(_table_option(run))))


def describes(command: Callable[..., Document | None]) -> Callable[..., None]:
    """Print the `Document` that a command returns: its text, or with --json its data.

    It stands below all other decorators. A command that returns None has printed everything.
    """

    @functools.wraps(command)
    def run(*args: Any, as_json: bool, **options: Any) -> None:
        found = command(*args, **options)
        if found is None:
            return
        if as_json:
            print_json(found.data())
        elif text := found.text():
            page(text)
        if found.failed:
            raise click.exceptions.Exit(1)

    return json_option(run)


def _print_shown(found: Table, choice: str) -> None:
    if choice in ("--json", "--yaml"):
        printer = print_json if choice == "--json" else print_yaml
        printer(found.data() if found.data else list(found.rows))
    elif choice == "--csv":
        headers = [column.csv_header or column.header for column in found.columns]
        cells = ([plain(column.csv(row)) for column in found.columns] for row in found.rows)
        click.echo(csv_text(headers, cells), nl=False)
    elif found.text is not None and not choice:
        page(found.text())
    else:
        page(columns_text(found.columns, found.rows, whole=choice == "--table" or found.wanted))


def page(text: str) -> None:
    """Print a text, with a pager where stdout is a terminal that has fewer lines."""
    if not on_terminal() or text.count("\n") + 2 < shutil.get_terminal_size().lines:
        click.echo(text)
        return
    os.environ.setdefault("LESS", "FRX")  # as git does: colours, and no screen of its own
    click.echo_via_pager(text + "\n")


def note(text: str) -> None:
    """Print a message on stderr, where it never mixes with results."""
    click.echo(text, err=True)


def confirm_deletion(question: str, yes: bool) -> None:
    """Ask before something is deleted, unless the user gave `yes`; a no ends the command."""
    if not yes and not click.confirm(question, err=True):
        note("Nothing was deleted.")
        raise click.exceptions.Exit(1)


def warn(text: str) -> None:
    """Print a warning on stderr; the command continues."""
    _complain("warning", text, "yellow")


def print_error(text: str, kind: str, current: Session | None = None) -> None:
    """Print an error on stderr, and enter it in the errors of the JSON envelope."""
    _complain("error", text, "red")
    (current or session()).errors.append({"kind": kind, "message": text})


def _complain(what: str, text: str, color: str) -> None:
    plain_stderr = "NO_COLOR" in os.environ or not sys.stderr.isatty()
    styled = f"detslurm: {what}:" if plain_stderr else click.style(f"detslurm: {what}:", fg=color)
    click.echo(f"{styled} {text}", err=True)


def print_json(value: Any) -> None:
    """Print one JSON document: the envelope with this data and with the errors so far.

    Times are RFC 3339 in UTC, NaN and infinities are text.
    """
    _print_envelope(value, session(), indent=2)


def print_json_errors(current: Session) -> None:
    """Print the envelope of a command that failed, on one line, unless it has answered."""
    if not current.answered:
        _print_envelope(None, current, indent=None)


def print_yaml(value: Any) -> None:
    """Print what `print_json` does, as YAML."""
    import yaml  # only here

    document = json.loads(json.dumps(_envelope(value, session())))  # without classes of ours
    click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=_unicode()), nl=False)


def _print_envelope(value: Any, current: Session, indent: int | None) -> None:
    if indent and type(value) is list and len(value) > _AT_ONCE:
        _print_piecewise(value, current, indent)
        return
    document = _envelope(value, current)
    click.echo(json.dumps(document, indent=indent, ensure_ascii=not _unicode()))


def _print_piecewise(rows: list[Any], current: Session, indent: int) -> None:
    """Print the same for many rows without having all of the text at once."""

    def text(value: Any) -> str:
        return json.dumps(value, indent=indent, ensure_ascii=not _unicode())

    # No string in JSON has a line break of its own.
    margin = "\n" + " " * indent * (1 if current.bare else 2)
    before, _, after = text(_envelope([], current)).partition("[]")
    click.echo(f"{before}[", nl=False)
    for first in range(0, len(rows), _AT_ONCE):
        part = (
            margin + text(plain(row)).replace("\n", margin)
            for row in rows[first : first + _AT_ONCE]
        )
        click.echo(("," if first else "") + ",".join(part), nl=False)
    click.echo(margin[:-indent] + "]" + after)


def _envelope(value: Any, current: Session) -> Any:
    current.answered = True
    document = plain(value)
    if current.bare:
        return document
    return {"schema_version": SCHEMA_VERSION, "data": document, "errors": list(current.errors)}


def json_line(value: Any) -> None:
    """Print one JSON document on a line of its own, without the envelope."""
    click.echo(json.dumps(plain(value), ensure_ascii=not _unicode()))


def _unicode() -> bool:
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"


def plain(value: Any, key: str = "", *, given: bool = False) -> Any:
    """Plain data for JSON out of views, tuples, sets and numbers of every kind.

    Numbers under `key`, and under the names inside, are times where these names mean times; not in
    what users have `given`.
    """
    given = given or key in _GIVEN
    if isinstance(value, float):
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return rfc3339(value) if key in _TIMES and not given else value
    if isinstance(value, UserData):
        return plain(value.value, given=True)
    if isinstance(value, Mapping):
        return {str(name): plain(item, str(name), given=given) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [plain(item, given=given) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item, given=given) for item in value)
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if hasattr(value, "__struct_fields__"):
        names = value.__struct_fields__
        return {name: plain(getattr(value, name), name) for name in names}
    return value


def csv_text(headers: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """CSV of plain data: numbers with all their digits, lists and mappings as JSON."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(spreadsheet_text, headers))
    for row in rows:
        cells = (json.dumps(c) if isinstance(c, (list, dict)) else c for c in row)
        writer.writerow(map(spreadsheet_text, cells))
    return text.getvalue()
