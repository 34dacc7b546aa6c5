"""`detslurm du`: the disk usage of experiments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import click

from detslurm._base.quantities import counted
from detslurm.cli.arguments.ids import any_experiments, client
from detslurm.cli.output.printing import Column, Table, note, shows, size
from detslurm.cli.output.progress import steps
from detslurm.sdk.disk.usage import ExperimentUsage

_KINDS = ("total", "checkpoints", "logs", "metrics", "code", "tensorboard")


@click.command()
@any_experiments
@click.option("--by-user", is_flag=True, help="Show one row for each user.")
@shows
def du(ids: list[int], by_user: bool) -> Table:
    """Show the disk usage of experiments, by kind of file, the largest first.

    Checkpoints and code count as they were recorded, other files by their present size. The total,
    free space and quotas go to stderr.

    \b
    Examples:
      detslurm du
      detslurm du 7 8
      detslurm du --by-user --csv
    """
    mine = client()
    with steps("Looking at experiments") as progress:
        found = mine.disk_usage(ids or None, progress=progress)
    found.sort(key=lambda experiment: -experiment.usage.total)
    total = size(sum(experiment.usage.total for experiment in found))
    note(f"{total} in {counted(len(found), 'experiment')}")
    for quota in mine.quotas():
        note(quota.text)
    rows = [_plain(experiment) for experiment in found]
    kinds = [_column(k.capitalize(), k, "size", drop=1 + n) for n, k in enumerate(_KINDS[1:])]
    sizes = [_column("Total", "total", "size"), *kinds]
    if by_user:
        return Table([_column("User", "owner"), *sizes], _by_user(rows))
    first = [
        _column("ID", "id"),
        _column("Owner", "owner", drop=2),
        _column("Name", "name", least=8),
        _column("State", "state", "state", drop=3),
    ]
    return Table([*first, *sizes], rows)


def _column(header: str, field: str, *kind: Any, **options: Any) -> Column:
    return Column(header, itemgetter(field), *kind, **options)


def _plain(experiment: ExperimentUsage) -> dict[str, Any]:
    about = {name: getattr(experiment, name) for name in ("id", "owner", "name", "state")}
    return {**about, **{kind: getattr(experiment.usage, kind) for kind in _KINDS}}


def _by_user(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    sums: dict[str, Counter[str]] = {}
    for row in rows:
        own = sums.setdefault(row["owner"], Counter())
        own.update({"experiments": 1, **{kind: row[kind] for kind in _KINDS}})
    users = [{"owner": owner, **own} for owner, own in sums.items()]
    return sorted(users, key=lambda row: -row["total"])
