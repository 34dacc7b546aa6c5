"""`python -m detslurm.compat det ARGS...`: scripts that call `det` go on with detslurm's commands.

JSON comes without detslurm's envelope, as `det` prints it. Arguments that need a server are named
on stderr and left out, or refused where leaving them out would change the result.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click

from detslurm.cli import det_tables
from detslurm.cli.app import app, run

_USAGE = "usage: python -m detslurm.compat det COMMAND ...  (det's commands, done by detslurm)"


class Translated(NamedTuple):
    """A command line of detslurm, and the words left out on the way."""

    words: list[str]
    notes: list[str]


class NoMeaning(Exception):
    """The user's request does not exist here; its text names the alternative."""


def translate(argv: Sequence[str]) -> Translated:
    """The command line of detslurm for a command line of det.

    Raises:
        NoMeaning: If it has none.
    """
    notes: list[str] = []
    words = _global_options(list(argv), notes)
    if not words:
        return Translated(["--help"], notes)
    first, *rest = words
    if first in ("-v", "--version", "version"):
        return Translated(["--version"], notes)
    _refuse_command(first, ())
    group = det_tables.GROUPS.get(first, first)
    if not rest and group in det_tables.LISTING:
        rest = ["list"]
    if group == "preview-search" or not rest:
        return Translated([group, *rest], notes)
    command = det_tables.GROUP_COMMANDS.get(
        f"{group} {rest[0]}", det_tables.COMMANDS.get(rest[0], rest[0])
    )
    path = f"{group} {command}"
    _refuse_command(path, rest[1:])
    renamed = det_tables.RENAMED.get(path, {})
    options, program = _divided(path, rest[1:])
    words = [renamed.get(word, word) for word in options]
    kept = _without(words, _ignored(group, command), notes)
    refused = det_tables.REFUSED.get(path, {})
    for word in kept:
        if (name := word.partition("=")[0]) in refused:
            raise NoMeaning(f"`{name}` has no meaning here: {refused[name]}")
    added = det_tables.ADDED.get(path, ())
    return Translated([group, command, *added, *kept, *program], notes)


def _ignored(group: str, name: str) -> dict[str, det_tables.Ignored]:
    """The options of a group that its command `name` does not have."""
    context = click.Context(app)
    commands = app.get_command(context, group)
    command = commands.get_command(context, name) if isinstance(commands, click.Group) else None
    own = {option for param in command.params for option in param.opts} if command else set()
    known = det_tables.IGNORED.get(group, {})
    return {option: ignored for option, ignored in known.items() if option not in own}


def _divided(path: str, words: list[str]) -> tuple[list[str], list[str]]:
    """The words for det, and those for the program that the command starts."""
    end = words.index("--") if "--" in words else len(words)
    if path not in det_tables.PROGRAM_AFTER:
        return words[:end], words[end:]
    flags, count = det_tables.PROGRAM_AFTER[path], 0
    while count < end and words[count].startswith("-"):
        count += 1 if words[count] in flags or "=" in words[count] else 2
    return words[:count], words[count:]


def _refuse_command(path: str, rest: Sequence[str]) -> None:
    for words in (path, " ".join([path, *rest[:1]])):
        if words in det_tables.NO_COMMAND:
            raise NoMeaning(f"`det {words}` has no meaning here: {det_tables.NO_COMMAND[words]}")


def _global_options(words: list[str], notes: list[str]) -> list[str]:
    """The rest after the options that stand before the command."""
    count = 0
    while words[count:] and words[count].partition("=")[0] in det_tables.GLOBAL:
        count += 1 if "=" in words[count] else 2
    return [*_without(words[:count], det_tables.GLOBAL, notes), *words[count:]]


def _without(
    words: Sequence[str], ignored: Mapping[str, det_tables.Ignored], notes: list[str]
) -> list[str]:
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in ignored:
            kept.append(word)
            continue
        notes.append(f"{name} is ignored: {ignored[name].why}")
        if ignored[name].takes_value and not equals:
            next(rest, None)
    return kept


def main(argv: Sequence[str]) -> int:
    """Run one command line of det; returns the exit status."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_USAGE, file=sys.stderr if not argv else sys.stdout)
        return 0 if argv else 2
    try:
        translated = translate(argv)
    except NoMeaning as error:
        print(f"det: error: {error}", file=sys.stderr)
        return 1
    for note in translated.notes:
        print(f"det: note: {note}", file=sys.stderr)
    return run(translated.words, bare=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
