"""The use of slots by users, projects, experiments, months or pools: sums over the index's rows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

import msgspec

from detslurm.sdk.costs.energy import EnergyUse
from detslurm.store import Energy, ExperimentRow

By = Literal["user", "project", "experiment", "month", "pool"]
BY: Final[tuple[str, ...]] = get_args(By)
DEFAULT_POOL: Final = "(default)"


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """The use of slots by a group of experiments and tasks. None means that a figure is unknown.

    Attributes:
        name: The user, "workspace/project", the experiment's name, the month as "2026-11", or the
            partition.
        slot_hours: Their slots times hours, of runs that go on up to their last record.
        ettr: The effective training time ratio, weighted by slots.
        unknown: How many have begun whose slot-hours are unknown, and in no sum.
        disk: The bytes on disk, as `Client.disk_usage` measured them last.
    """

    name: str
    experiment: int | None = None
    experiments: int = 0
    trials: int = 0
    slot_hours: float | None = None
    ettr: float | None = None
    energy: EnergyUse | None = None
    unknown: int = 0
    disk: int | None = None


def usage_by(
    rows: Iterable[ExperimentRow], by: By, disk: Mapping[int, int] | None = None
) -> list[UsageSum]:
    """The sums of each group, months in order, others by slot-hours, the most first."""
    groups: dict[tuple[str, int | None], list[ExperimentRow]] = {}
    for row in rows:
        key = (name_of(row, by), row.id if by == "experiment" else None)
        groups.setdefault(key, []).append(row)
    found = [_sum(name, number, group, disk or {}) for (name, number), group in groups.items()]
    if by == "month":
        return sorted(found, key=lambda one: one.name)
    return sorted(found, key=lambda one: (-(one.slot_hours or 0.0), one.name, one.experiment or 0))


def slot_hours(row: ExperimentRow) -> float | None:
    """The slots times hours of an experiment; None if unknown."""
    if row.run_seconds is None or row.slots is None:
        return None
    return row.run_seconds * row.slots / 3600


def name_of(row: ExperimentRow, by: By) -> str:
    """The group of an experiment. A month is that of its submission, in local time."""
    match by:
        case "user":
            return row.owner
        case "project":
            return f"{row.workspace}/{row.project}"
        case "experiment":
            return row.name
        case "month":
            created = row.created
            return "" if created is None else time.strftime("%Y-%m", time.localtime(created))
        case "pool":
            return row.pool or DEFAULT_POOL


def _sum(
    name: str, number: int | None, rows: list[ExperimentRow], disk: Mapping[int, int]
) -> UsageSum:
    hours = [found for row in rows if (found := slot_hours(row)) is not None]
    sizes = [disk[row.id] for row in rows if row.id in disk]
    return UsageSum(
        name=name,
        experiment=number,
        experiments=len(rows),
        trials=sum(row.trial_count for row in rows),
        slot_hours=sum(hours) if hours else None,
        ettr=_ratio(rows),
        energy=EnergyUse.of(Energy.sum(row.energy for row in rows if row.started is not None)),
        unknown=sum(row.started is not None and row.run_seconds is None for row in rows),
        disk=sum(sizes) if sizes else None,
    )


def _ratio(rows: list[ExperimentRow]) -> float | None:
    """Of experiments, for a task trains nothing."""
    productive = whole = 0.0
    for row in rows:
        if row.task is None and row.productive_seconds is not None and row.wall_seconds is not None:
            productive += row.productive_seconds * (row.slots or 1)
            whole += row.wall_seconds * (row.slots or 1)
    return productive / whole if whole else None
