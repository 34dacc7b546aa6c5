"""`detslurm compare`: experiments or trials side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from detslurm.cli.arguments.ids import client, several_ids
from detslurm.cli.output.printing import Document, describes, human_time, table
from detslurm.sdk.experiments.comparison import Comparison, Difference

_PARTS = {"Results": "Result", "Configuration": "Key", "Environment": "Part", "Code": "File"}
"""The parts in their order, each with the title of its first column."""


@click.command()
@several_ids
@click.option("-t", "--trials", is_flag=True, help="Take the ids as those of trials.")
@click.option("--code", "diff", is_flag=True, help="Show the lines of the code that differ, too.")
@describes
def compare(ids: list[int], trials: bool, diff: bool) -> Document:
    """Show experiments side by side, only what differs.

    Results, configuration, code, and the environment: commit, packages, modules and hardware.

    \b
    Examples:
      detslurm compare 7 12
      detslurm compare 7 12 --code
      detslurm compare -t 31 33 40
    """
    if len(ids) < 2:
        raise click.UsageError("at least two ids are needed")
    found = client().compare(ids, trials=trials, diff=diff)
    return Document(lambda: _text(found, "trial" if trials else "experiment"), found.to_dict)


def _text(found: Comparison, what: str) -> str:
    parts = (found.results, found.config, found.environment, found.code)
    texts = [
        f"{title}:\n{_table([head, *(f'{what.capitalize()} {n}' for n in found.ids)], rows)}"
        for (title, head), rows in zip(_PARTS.items(), parts, strict=True)
        if rows
    ]
    texts += found.diffs.values()
    return "\n\n".join(texts) or f"The {what}s don't differ."


def _table(heads: Sequence[str], rows: Sequence[Difference]) -> str:
    cells = [[_name(row.name), *(_cell(row.name, value) for value in row.values)] for row in rows]
    return table(heads, cells)


def _name(name: str) -> str:
    return "duration" if name == "seconds" else name


def _cell(name: str, value: object) -> object:
    if value is None:
        return "-"
    if name == "seconds" and isinstance(value, int):
        return human_time(value)
    return value if isinstance(value, (int, float, str)) else json.dumps(value)
