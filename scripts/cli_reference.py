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

`detslurm COMMAND --help` prints the same text. Results go to stdout, everything else to stderr,
where errors begin with `detslurm: error:` and warnings with `detslurm: warning:`.

On a terminal, tables are fitted to its width (columns that matter less are left out, long names are
cut), coloured, with times such as "3 hours ago", and long output goes through `$PAGER`. In a pipe
or a file they are complete and plain: local times, no colours, nothing cut. `NO_COLOR=1` switches
colours off, `PAGER=cat` the pager, `--table` prints all columns on a terminal, too, as `--columns`
does with those that it names.

| exit status | meaning |
|---|---|
| 0 | success |
| 1 | an error; also `experiment wait` if the experiment is not COMPLETED |
| 2 | a wrong command line or configuration |
| 130 | ended by Ctrl-C; 129 or 143 by a lost connection (SIGHUP) or by `kill` |

Tab completes commands, options, ids, names of experiments, keys of the configuration and files:
`detslurm completion install`. Where an id goes, `last` and `@-1` are the newest, `@-2` the one
before; a name or a glob of names in quotes stands for experiments. `make man` writes man pages.

## JSON

With `--json` stdout is one JSON document, whether the command succeeds or fails:

```json
{
  "schema_version": 1,
  "data": null,
  "errors": [{"kind": "not_found", "message": "there is no experiment 7"}]
}
```

- `schema_version` grows when a field changes its meaning or disappears; new fields may come at any
  time.
- `data` is the result: a list for lists, null if there is none. A command that acts on several ids
  lists what came of each: `id`, `done` and `message`. Some may fail while others are done: then
  there are data and errors.
- `errors` is empty on success. Their `kind` is one of `usage` (a wrong command line), `config` (a
  wrong configuration), `not_found`, `refused` (what can't be done in this state, or by this
  user), `slurm` (the scheduler), `store` and `io`. The messages go to stderr, too.

Times are RFC 3339 in UTC, sizes are bytes, shares are from 0 to 1, NaN and infinities are text.
`logs --json` prints one object a line, without the envelope; if it fails, the last line is the
envelope. `jq .data` takes the envelope off.

`--csv` prints the rows of a table with the table's headers: times, spans of time, sizes, shares,
figures and hyperparameters as in JSON, neither rounded nor in words.

## The store

The store is `$DETSLURM_ROOT`, else the `root` of the site profile, else `~/detslurm`. If one of the
first two names a store that does not exist, that is an error for all but what makes one: `submit`,
and scripts that run by hand.

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
