"""Write docs/cli.md: every command's own help, so that page and program can't drift apart.

`--check` writes nothing and fails when the page does not match the program.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from detslurm.cli.app import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
_HEAD = """\
# The command line

`detslurm COMMAND --help` prints the same text. Results go to stdout, everything else to stderr.
With `--json` stdout is one JSON document (for `logs` one a line): times are RFC 3339 in UTC, and
NaN and infinities are text. The exit status is 0 on success, 1 for an error (and for `experiment
wait` if the experiment is not COMPLETED), 2 for a wrong command line or configuration, 130 after
Ctrl-C.

The store is `$DETSLURM_ROOT`, else the `root` of the site profile, else `~/detslurm`. If one of the
first two names a store that does not exist, that is an error.

This page is made by `python scripts/cli_reference.py`.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_sections()])


def commands(
    group: click.Group, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    """Every command below a group with its context, groups before what is in them."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, context, info_name=name, terminal_width=88)
        yield command, inner
        if isinstance(command, click.Group):
            yield from commands(command, inner)


def top() -> click.Context:
    """The context of `detslurm` itself."""
    settings = {**app.context_settings, "max_content_width": 88, "terminal_width": 88}
    return click.Context(app, info_name="detslurm", **settings)


def _sections() -> Iterator[str]:
    context = top()
    yield _section(app, context)
    for command, inner in commands(app, context):
        yield _section(command, inner)


def _section(command: click.Command, context: click.Context) -> str:
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    return f"## {context.command_path}\n\n```text\n{text}\n```\n"


def main(argv: list[str]) -> int:
    """Write the page, or check it."""
    text = page()
    if "--check" not in argv:
        PAGE.write_text(text)
        return 0
    # Versions of click break lines differently: the words count.
    if PAGE.exists() and PAGE.read_text().split() == text.split():
        return 0
    print(f"{PAGE} does not match the program: run python scripts/cli_reference.py")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
