"""What the profiler recorded of a trial's nodes: a series in time, no part of the curve."""

from __future__ import annotations

from typing import Any

import msgspec

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


def trial_profile(trial: TrialDir, group: str | None = None) -> list[ProfileRow]:
    """Everything that the profiler recorded, in the order of time; one group's, or all."""
    rows = [
        ProfileRow(record["time"], run.number, name, record["group"], metrics)
        for run in trial.runs()
        for node in range(max(len((run.start.get("job") or {}).get("nodes") or ()), 1))
        for record in trial.node_records(run.number, node)
        if record.get("t") == "profile" and group in (None, record["group"])
        for name, metrics in record["metrics"].items()
    ]
    return sorted(rows, key=lambda row: row.time)
