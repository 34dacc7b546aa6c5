"""Reading squeue: one call for any number of jobs, in a format that every Slurm prints."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from detslurm.slurm.hostlist import expand_indices, hosts_in
from detslurm.slurm.interface import job_ids_of, split_ref
from detslurm.slurm.queue_state import FINAL_STATES, WAITING_STATES, JobInfo

# Raw id, array id, array indices, state, partition, priority, time left, submit time, start time,
# nodes; the reason and the working directory come last because only they may hold any character.
_FORMAT = "%A|%F|%K|%T|%P|%Q|%L|%V|%S|%N|%r|%Z"


def squeue_command(refs: Collection[str]) -> list[str]:
    """The one squeue that covers all these jobs, those that just ended included."""
    ids = ",".join(job_ids_of(refs))
    return ["squeue", "--noheader", "--states=all", f"--jobs={ids}", f"--format={_FORMAT}"]


def parse_squeue(text: str) -> dict[str, JobInfo]:
    """Ref -> the queue's description; the elements of a pending range share one description."""
    found: dict[str, JobInfo] = {}
    for line in text.splitlines():
        fields = line.split("|", 10)
        if len(fields) == 11:
            found.update(_row(fields))
    return found


def _row(fields: list[str]) -> Iterable[tuple[str, JobInfo]]:
    raw, array, indices, state, partition, priority, left, submitted, start, nodes, rest = fields
    reason, _, folder = rest.partition("|/")
    refs = [raw] if indices == "N/A" else [f"{array}_{i}" for i in expand_indices(indices)]
    for ref in refs:
        yield (
            ref,
            JobInfo(
                ref=ref,
                state=state,
                reason="" if reason == "None" else reason,
                partitions=tuple(filter(None, partition.split(","))),
                nodes=hosts_in(nodes),
                time_left=None if state in FINAL_STATES else parse_duration(left),
                priority=int(priority) if priority.isdigit() else None,
                submitted=parse_time(submitted),
                expected_start=parse_time(start) if state in WAITING_STATES else None,
                folder=f"/{folder}" if folder else "",
            ),
        )


def parse_duration(text: str) -> int | None:
    """Seconds of Slurm's [days-]hh:mm:ss, mm:ss; None for UNLIMITED, NOT_SET and the like."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_time(text: str | None) -> float | None:
    """The unix seconds that Slurm prints with SLURM_TIME_FORMAT=%s; None for N/A and the like."""
    return float(text) if text and text.isdigit() else None


def parse_number(text: str | None) -> int | None:
    """The whole number at the start of a text: sizes may have letters after them."""
    match = re.match(r"-?\d+", text or "")
    return int(match[0]) if match else None


def parse_amount(text: str) -> int | None:
    """A size in MiB, whatever else is counted as it is; None for words and for nothing."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)", text)
    if match is None:
        return None
    return int(float(match[1]) * 1024 ** ("KMGTP".index(match[2] or "M") - 1))


def wanted(refs: Collection[str], found: dict[str, JobInfo]) -> dict[str, JobInfo]:
    """The requested jobs: a job id stands for all its elements.

    When all waiting elements of an array are cancelled at once, Slurm forgets which they were and
    keeps one record under the array's own id: it speaks for every element without its own.
    """
    whole = {ref for ref in refs if split_ref(ref)[1] is None}
    chosen = {ref: info for ref, info in found.items() if ref in refs or split_ref(ref)[0] in whole}
    for ref in refs:
        rest = found.get(split_ref(ref)[0])
        if ref not in chosen and rest is not None and rest.final:
            chosen[ref] = replace(rest, ref=ref)
    return chosen
