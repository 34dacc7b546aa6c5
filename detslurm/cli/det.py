"""`python -m detslurm.compat det ARGS...`: scripts that call `det` go on with detslurm's commands.

JSON comes without detslurm's envelope, as `det` prints it. What has no meaning without a server is
named on stderr and left out, or refused where leaving it out would change what is done.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_USAGE = "usage: python -m detslurm.compat det COMMAND ...  (det's commands, done by detslurm)"


class Ignored(NamedTuple):
    """An option of `det` that is left out: whether a value follows it, and why."""

    takes_value: bool
    why: str


_NO_SERVER = "there is no server"
_GLOBAL: Mapping[str, Ignored] = {
    "-u": Ignored(True, "users are those of the cluster"),
    "--user": Ignored(True, "users are those of the cluster"),
    "-m": Ignored(True, _NO_SERVER),
    "--master": Ignored(True, _NO_SERVER),
    "-v": Ignored(False, "nothing is more verbose"),
    "--verbose": Ignored(False, "nothing is more verbose"),
}
_PAGES = Ignored(True, "lists have no pages")
_CREATE: Mapping[str, Ignored] = {
    "-p": Ignored(False, "nothing is published: ports are open on the node"),
    "--publish": Ignored(False, "nothing is published: ports are open on the node"),
}
_IGNORED: Mapping[str, Mapping[str, Ignored]] = {
    "experiment create": _CREATE,
    "experiment list": {"--pages": _PAGES},
    "experiment list-trials": {"--pages": _PAGES, "--limit": _PAGES, "--offset": _PAGES},
    "trial describe": {"--limit": _PAGES, "--offset": _PAGES, "--pages": _PAGES},
    "checkpoint download": {"--mode": Ignored(True, "files are copied from where they are")},
}
# Doing something else instead would be worse than nothing.
_REFUSED: Mapping[str, Mapping[str, str]] = {
    "experiment create": {
        "--local": "`python -m detslurm.compat SCRIPT` runs a script here, as in a job",
        "--project_id": "projects have names: `--project WORKSPACE/PROJECT`",
        "--project-id": "projects have names: `--project WORKSPACE/PROJECT`",
    },
    "experiment describe": {
        "--metrics": "`detslurm trial metrics ID` prints a trial's; `--outdir` writes all as CSV"
    },
    "trial describe": {
        "--metrics-summary": "`detslurm trial metrics ID` prints them, also with --csv or --json",
    },
}
_ONE_LETTER = (
    "agent", "checkpoint", "experiment", "job", "model", "project", "slot", "trial", "workspace",
)  # fmt: skip
_GROUPS = {name[0]: name for name in _ONE_LETTER} | {"tpl": "template", "rp": "resource-pool"}
_COMMANDS = {"ls": "list", "lt": "list-trials", "lc": "list-checkpoints"}
_NOTHING = {
    "master": _NO_SERVER,
    "user": f"{_NO_SERVER}: users are those of the cluster",
    "u": f"{_NO_SERVER}: users are those of the cluster",
    "auth": f"{_NO_SERVER}, and nothing to log in to",
    "deploy": f"{_NO_SERVER}, and nothing to deploy",
    "dev": _NO_SERVER,
    "notebook": "start Jupyter in a job of your own",
    "shell": "`srun --pty bash` gives a shell on a node",
    "cmd": "`detslurm submit` runs any command as an experiment",
    "command": "`detslurm submit` runs any command as an experiment",
    "rbac": "rights are those of the file system",
    "oauth": _NO_SERVER,
    "version": "`detslurm --version`",
}


class Translated(NamedTuple):
    """A command line of detslurm, and what was left out on the way."""

    words: list[str]
    notes: list[str]


class NoMeaning(Exception):
    """What the user asked for does not exist here; its text says what to do instead."""


def translate(argv: Sequence[str]) -> Translated:
    """The command line of detslurm for one of det.

    Raises:
        NoMeaning: If it has none.
    """
    notes: list[str] = []
    words = _global_options(list(argv), notes)
    if not words:
        return Translated(["--help"], notes)
    first, *rest = words
    if first in _NOTHING:
        raise NoMeaning(f"`det {first}` has no meaning here: {_NOTHING[first]}")
    group = _GROUPS.get(first, first)
    if group == "preview-search" or not rest:
        return Translated([group, *rest], notes)
    command = _COMMANDS.get(rest[0], rest[0])
    path = f"{group} {command}"
    kept = _without(rest[1:], _IGNORED.get(path, {}), notes)
    refused = _REFUSED.get(path, {})
    for word in kept:
        if (name := word.partition("=")[0]) in refused:
            raise NoMeaning(f"`{name}` has no meaning here: {refused[name]}")
    return Translated([group, command, *kept], notes)


def _global_options(words: list[str], notes: list[str]) -> list[str]:
    """What is left after the options that stand before the command."""
    while words and words[0].partition("=")[0] in _GLOBAL:
        name, equals, _ = words[0].partition("=")
        ignored = _GLOBAL[name]
        notes.append(f"{name} is ignored: {ignored.why}")
        words = words[2 if ignored.takes_value and not equals else 1 :]
    return words


def _without(words: Sequence[str], ignored: Mapping[str, Ignored], notes: list[str]) -> list[str]:
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
    from detslurm.cli.app import run

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
