"""Write man pages: one for `detslurm`, one for each command, from the program's own help.

    python -m scripts.man_pages DIRECTORY     (`make man` writes build/man)

`man -M build/man detslurm-experiment-list` shows one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from detslurm import __version__
from detslurm.cli.app import app
from scripts.cli_reference import commands, top


def pages() -> Iterator[tuple[str, str]]:
    """The name of each page and its text."""
    context = top()
    yield _page(app, context)
    for command, inner in commands(app, context):
        yield _page(command, inner)


def _page(command: click.Command, context: click.Context) -> tuple[str, str]:
    name = context.command_path.replace(" ", "-")
    text, _, examples = (command.help or "").replace("\b\n", "").partition("Examples:\n")
    summary, _, more = text.strip().partition("\n\n")
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [
        f'.TH "{name.upper()}" 1 "" "detslurm {__version__}" "detslurm"',
        ".SH NAME",
        f"{_roff(name)} \\- {_roff(' '.join(summary.split()).rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_roff(context.command_path)}",
        _roff(usage),
    ]
    if more.strip():
        parts += [".SH DESCRIPTION", *_paragraphs(more)]
    parts += list(_commands(command, context)) + list(_options(command, context))
    if examples.strip():
        lines = [_roff(line.strip()) for line in examples.strip().splitlines()]
        parts += [".SH EXAMPLES", ".nf", *lines, ".fi"]
    if context.parent is not None:
        parts += [".SH SEE ALSO", f".BR {_roff(context.parent.command_path.replace(' ', '-'))} (1)"]
    return f"{name}.1", "\n".join(parts) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield ".PP"
        yield _roff(" ".join(paragraph.split()))


def _commands(command: click.Command, context: click.Context) -> Iterator[str]:
    if not isinstance(command, click.Group):
        return
    yield ".SH COMMANDS"
    entries = getattr(command, "entries", {})
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        help_text = entries[name].help if name in entries else below.get_short_help_str(200)  # type: ignore[union-attr]
        yield ".TP"
        yield f".B {_roff(name)}"
        yield _roff(help_text)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    records = [
        record
        for parameter in command.get_params(context)
        if (record := parameter.get_help_record(context)) is not None
    ]
    if records:
        yield ".SH OPTIONS"
    for names, help_text in records:
        yield ".TP"
        yield f".B {_roff(names)}"
        yield _roff(" ".join(help_text.split()))


def _roff(text: str) -> str:
    """Text that no roff takes for a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


def main(argv: list[str]) -> int:
    """Write all pages below a directory."""
    if len(argv) != 1:
        print("usage: python -m scripts.man_pages DIRECTORY", file=sys.stderr)
        return 2
    target = Path(argv[0]) / "man1"
    target.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (target / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
