"""`detslurm compare`: experiments or trials side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from detslurm.cli.arguments.ids import client, several_ids
from detslurm.cli.output.printing import Document, describes

if TYPE_CHECKING:
    from detslurm.sdk.experiments.comparison import Comparison, Difference

_TITLES = ("Configuration", "Code", "Results")


@click.command()
@several_ids
@click.option("-t", "--trials", is_flag=True, help="Take the ids as those of trials.")
@click.option("--code", "diff", is_flag=True, help="Show the lines of the code that differ, too.")
@describes
def compare(ids: list[int], trials: bool, diff: bool) -> Document:
    """Show experiments side by side: configuration, code and results, only what differs.

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
    parts = (found.config, found.code, found.results)
    texts = [
        f"{title}:\n{_table(found.ids, rows)}"
        for title, rows in zip(_TITLES, parts, strict=True)
        if rows
    ]
    texts += found.diffs.values()
    return "\n\n".join(texts) or f"The {what}s don't differ."


def _table(ids: Sequence[int], rows: Sequence[Difference]) -> str:
    from detslurm.cli.output.printing import table

    cells = [[row.name, *(_cell(value) for value in row.values)] for row in rows]
    return table(["", *map(str, ids)], cells)


def _cell(value: object) -> object:
    if value is None:
        return "-"
    return value if isinstance(value, (int, float, str)) else _json(value)


def _json(value: object) -> str:
    import json

    return json.dumps(value)
