"""Looks for an earlier start of a waiting job: at most three variants, judged by the cluster."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from detslurm._base.quantities import counted
from detslurm.sdk.waiting.explain import estimate
from detslurm.sdk.waiting.explanation import Variant
from detslurm.sdk.waiting.resources import free_slots
from detslurm.sdk.waiting.spans import span
from detslurm.slurm import SlurmError
from detslurm.slurm.reasons import reason_of

if TYPE_CHECKING:
    from detslurm.sdk.waiting.evidence import JobEvidence
    from detslurm.slurm import Cluster

_SHORTEST = 600  # seconds: half of less is hardly ever worth a start


def tried(evidence: JobEvidence, cluster: Cluster) -> tuple[Variant, ...]:
    """Ask the cluster about each variant: half the time, fewer GPUs, another partition."""
    now = estimate(evidence)
    found = []
    for change, options, command in _questions(evidence):
        try:
            start = cluster.start_of(options)
        except SlurmError as error:
            found.append(Variant(change=change, refusal=error.message.splitlines()[0]))
            continue
        sooner = None if now is None else now.time - start
        found.append(Variant(change=change, expected_start=start, sooner=sooner, command=command))
    return tuple(found)


def _questions(evidence: JobEvidence) -> Iterator[tuple[str, Sequence[str], str]]:
    """Each variant's change, its options of sbatch, and the command that would make the change.

    There is none for a job that waits for something that these would not change.
    """
    row, same = evidence.row, evidence.details.options
    reason = reason_of(row.reason)
    if not same or not row.waiting or reason.category not in ("resources", "quota"):
        return
    if reason.code == "JobArrayTaskLimit":
        return
    limit = row.time_limit
    pool = [f"--partition={','.join(row.partitions)}"] if row.partitions else []
    time = [] if limit is None else [f"--time={max(1, limit // 60)}"]
    if limit is not None and limit >= 2 * _SHORTEST:
        half = limit // 120
        command = f"scontrol update JobId={shlex.quote(row.ref)} TimeLimit={half}"
        options = (*same, *pool, f"--time={half}")
        yield f"a time limit of {span(60 * half)}", options, command
    if fewer := _fewer_gpus(same):
        yield fewer[0], (*fewer[1], *pool, *time), ""
    if name := _emptiest_partition(evidence):
        command = f"detslurm job update {row.job_id} --resource-pool {name}"
        yield f"partition {name}", (*same, f"--partition={name}", *time), command


def _fewer_gpus(same: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """Half the GPUs of the first option that asks for several, in words and as options."""
    for place, option in enumerate(same):
        match = re.fullmatch(r"(--gres=gpu:(?:[^:]+:)?|--gpus=(?:[^:]+:)?)(\d+)(,.*)?", option)
        if match is not None and int(match[2]) > 1:
            half = int(match[2]) // 2
            change = counted(half, "GPU") + (" a node" if option.startswith("--gres") else "")
            fewer = f"{match[1]}{half}{match[3] or ''}"
            return change, (*same[:place], fewer, *same[place + 1 :])
    return None


def _emptiest_partition(evidence: JobEvidence) -> str:
    """The other partition with the most free slots; the cluster knows if it is open to the user."""
    free: dict[str, int] = {}
    for node in evidence.nodes:
        for name in set(node.partitions) - set(evidence.row.partitions):
            free[name] = free.get(name, 0) + free_slots(node, evidence.row)
    return max(sorted(free), key=lambda name: free[name], default="")
