"""`detslurm du`: what experiments take on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from detslurm._quantities import counted
from detslurm.cli.arguments.ids import any_experiments, client
from detslurm.cli.output.printing import Column, Table, note, shows, size
from detslurm.cli.output.progress import steps

if TYPE_CHECKING:
    from detslurm.sdk.disk.usage import ExperimentUsage

_KINDS = ("checkpoints", "logs", "metrics", "code", "tensorboard")


@click.command()
@any_experiments
@click.option("--by-user", is_flag=True, help="Show one row for each user.")
@shows
def du(ids: list[int], by_user: bool) -> Table:
    """Show what experiments take on disk, by kind of file, the largest first.

    Checkpoints and code count as they were recorded, other files by their present size. The total
    and what the file systems say of room and quota go to stderr.

    \b
    Examples:
      detslurm du
      detslurm du 7 8
      detslurm du --by-user --csv
    """
    mine = client()
    with steps("Looking at experiments") as progress:
        found = mine.disk_usage(ids or None, progress=progress)
    found.sort(key=lambda one: -one.usage.total)
    note(f"{size(sum(one.usage.total for one in found))} in {counted(len(found), 'experiment')}")
    for one in mine.quotas():
        note(one.text)
    rows = [_plain(one) for one in found]
    if by_user:
        return Table([Column("User", _field("owner")), *_sizes()], _by_user(rows))
    first = [
        Column("ID", _field("id")),
        Column("Owner", _field("owner"), drop=2),
        Column("Name", _field("name"), least=8),
        Column("State", _field("state"), "state", drop=3),
    ]
    return Table([*first, *_sizes()], rows)


def _field(name: str) -> Callable[[Any], Any]:
    return lambda row: row[name]


def _sizes() -> list[Column]:
    kinds = [Column(k.capitalize(), _field(k), "size", drop=1 + n) for n, k in enumerate(_KINDS)]
    return [Column("Total", _field("total"), "size"), *kinds]


def _plain(one: ExperimentUsage) -> dict[str, Any]:
    about = {name: getattr(one, name) for name in ("id", "owner", "name", "state")}
    kinds = {kind: getattr(one.usage, kind) for kind in _KINDS}
    return {**about, "total": one.usage.total, **kinds}


def _by_user(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        mine = found.setdefault(row["owner"], {"owner": row["owner"], "experiments": 0})
        mine["experiments"] += 1
        for name in ("total", *_KINDS):
            mine[name] = mine.get(name, 0) + row[name]
    return sorted(found.values(), key=lambda row: -row["total"])
