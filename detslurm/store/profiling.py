"""The profiler's records of a trial's nodes: a series in time, no part of the curve."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from detslurm.store.errors import CorruptRecord
from detslurm.store.frame import unframe_all
from detslurm.store.run_log import lines_of
from detslurm.store.trial import TrialDir


class ProfileRow(msgspec.Struct, frozen=True, gc=False):
    """Averaged system metrics of one group on one node.

    Attributes:
        time: When they were recorded, in seconds since 1970.
        run: The number of the run.
        node: The name of the node.
        group: "cpu", "memory", "disk", "network" or "gpu".
        metrics: Numbers by name. For things of which a node has several (disks, GPUs) a mapping of
            numbers under the name of each.
    """

    time: float
    run: int
    node: str
    group: str
    metrics: dict[str, Any]


class _Profile(msgspec.Struct, gc=False):
    t: Literal["profile"]
    group: str
    metrics: dict[str, dict[str, Any]]  # by node
    time: float


def trial_profile(trial: TrialDir, group: str | None = None) -> list[ProfileRow]:
    """Everything that the profiler recorded, in the order of time; one group's, or all."""
    rows = [
        ProfileRow(record.time, run.number, name, record.group, metrics)
        for run in trial.runs()
        for node in range(max(len(run.start.job.nodes), 1))
        for record in _profiles(trial.node_records_path(run.number, node))
        if group in (None, record.group)
        for name, metrics in record.metrics.items()
    ]
    return sorted(rows, key=lambda row: row.time)


def _profiles(path: Path) -> Iterator[_Profile]:
    for _, line in lines_of(str(path), None, 0, []):
        if b'"profile"' not in line:  # a million metrics may be beside them
            continue
        try:
            records = unframe_all(line)
        except CorruptRecord:
            continue
        for record in records:
            with suppress(msgspec.ValidationError):  # other records are beside it
                yield msgspec.convert(record, _Profile)
