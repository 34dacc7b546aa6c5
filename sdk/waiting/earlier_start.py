"""What would start a waiting job sooner: at most three variants, judged by the cluster."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from detslurm._quantities import counted
from detslurm.sdk.waiting.explain import estimate
from detslurm.sdk.waiting.explanation import Variant
from detslurm.sdk.waiting.resources import free_slots
from detslurm.sdk.waiting.spans import span
from detslurm.slurm import SlurmError
from detslurm.slurm.reasons import reason_of

if TYPE_CHECKING:
    from detslurm.sdk.waiting.evidence import JobEvidence
    from detslurm.slurm import Cluster
    from detslurm.slurm.queued_job import QueuedJob

MOST: Final = 3
_SHORTEST = 600  # seconds: half of less is hardly ever worth a start


@dataclass(frozen=True, slots=True)
class Trial:
    """One variant to try: what it changes, sbatch's options, and the command that would do it."""

    change: str
    options: tuple[str, ...]
    command: str = ""


def trials(evidence: JobEvidence) -> list[Trial]:
    """The variants that are worth a question: half the time, fewer GPUs a node, another partition.

    None for a job that waits for something that these would not change.
    """
    record, row = evidence.details.record, evidence.row
    if record is None or not row.waiting:
        return []
    reason = reason_of(row.reason)
    if reason.category not in ("resources", "quota") or reason.code == "JobArrayTaskLimit":
        return []
    same = list(record.options)
    found = [*_shorter(row, same), *_fewer_gpus(row, same), *_elsewhere(evidence, same)]
    return found[:MOST]


def _shorter(row: QueuedJob, same: Sequence[str]) -> Iterator[Trial]:
    if row.time_limit is None or row.time_limit < 2 * _SHORTEST:
        return
    minutes = row.time_limit // 120
    command = f"scontrol update JobId={shlex.quote(row.ref)} TimeLimit={minutes}"
    options = (*same, *_pool(row.partitions), f"--time={minutes}")
    yield Trial(f"a time limit of {span(60 * minutes)}", options, command)


def _fewer_gpus(row: QueuedJob, same: Sequence[str]) -> Iterator[Trial]:
    for place, option in enumerate(same):
        match = re.fullmatch(r"(--gres=gpu:(?:[^:]+:)?|--gpus=(?:[^:]+:)?)(\d+)(,.*)?", option)
        if match is None or int(match[2]) < 2:
            continue
        half = int(match[2]) // 2
        options = [*same]
        options[place] = f"{match[1]}{half}{match[3] or ''}"
        change = counted(half, "GPU") + (" a node" if option.startswith("--gres") else "")
        yield Trial(change, (*options, *_pool(row.partitions), *_time(row)))


def _elsewhere(evidence: JobEvidence, same: Sequence[str]) -> Iterator[Trial]:
    """The other partition with the most free slots; the cluster knows if it is open to the user."""
    row = evidence.row
    free: dict[str, int] = {}
    for node in evidence.nodes:
        for name in set(node.partitions) - set(row.partitions):
            free[name] = free.get(name, 0) + free_slots(node, row)
    if not free:
        return
    name = max(sorted(free), key=lambda name: free[name])
    command = f"detslurm job update {row.job_id} --resource-pool {name}"
    yield Trial(f"partition {name}", (*same, f"--partition={name}", *_time(row)), command)


def _pool(names: Sequence[str]) -> list[str]:
    return [f"--partition={','.join(names)}"] if names else []


def _time(row: QueuedJob) -> list[str]:
    return [] if row.time_limit is None else [f"--time={max(1, row.time_limit // 60)}"]


def tried(evidence: JobEvidence, cluster: Cluster) -> tuple[Variant, ...]:
    """Ask the cluster about each of them; one that can't be asked ends the questions."""
    now = estimate(evidence)
    found: list[Variant] = []
    for trial in trials(evidence):
        try:
            answer = cluster.start_of(trial.options)
        except SlurmError as error:
            found.append(Variant(change=trial.change, refusal=error.message.splitlines()[0]))
            break
        sooner = None
        if now is not None and answer.start is not None:
            sooner = now.time - answer.start
        found.append(
            Variant(
                change=trial.change,
                expected_start=answer.start,
                sooner=sooner,
                refusal=answer.refusal,
                command=trial.command,
            )
        )
    return tuple(found)
