"""The whole queue, everybody's jobs included: one squeue, whatever their number."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from detslurm.slurm.hostlist import expand_indices, hosts_in
from detslurm.slurm.interface import PartitionLimits
from detslurm.slurm.limits import gpu_counts
from detslurm.slurm.queue import parse_amount, parse_duration, parse_number, parse_time
from detslurm.slurm.queue_state import WAITING_STATES, JobInfo, ref_of

FIELDS = (
    "ArrayJobID",
    "ArrayTaskID",
    "State",
    "Reason",
    "Partition",
    "PriorityLong",
    "Nice",
    "UserName",
    "Account",
    "QOS",
    "SubmitTime",
    "StartTime",
    "TimeLimit",
    "TimeLeft",
    "NumNodes",
    "NodeList",
    "NumCPUs",
    "NumTasks",
    "tres-alloc",
    "tres-per-job",
    "tres-per-node",
    "tres-per-task",
    "Dependency",
    "Reservation",
    "Feature",
    "Licenses",
    "WorkDir",
    "Comment",
    "Name",
)


def scheduling_order(
    jobs: Iterable[JobInfo], partitions: Mapping[str, PartitionLimits]
) -> list[JobInfo]:
    """Running jobs by their start, then waiting jobs in the order in which Slurm considers them.

    That is by the tier of the partition, by the priority, and by the id.
    """

    def place(job: JobInfo) -> tuple[bool, float, float, int, tuple[int, ...]]:
        if not job.waiting:
            return False, job.started or 0.0, 0.0, int(job.job_id), job.indices
        known = [partitions[name].priority_tier for name in job.partitions if name in partitions]
        return True, -max(known, default=1), -(job.priority or 0), int(job.job_id), job.indices

    return sorted(jobs, key=place)


def new_separator() -> str:
    """A text that no name or comment can hold, so that none can pretend to be another field."""
    return f"|{os.urandom(6).hex()}|"


def listing_command(separator: str, partition: str | None = None) -> list[str]:
    """The one squeue for all jobs that wait or run, or for a partition's.

    `--Format` alone shows what resources a job has; with the width 0 it cuts nothing.
    """
    chosen = [f"--partition={partition}"] if partition else []
    fields = ",".join(f"{name}:0{separator}" for name in FIELDS)
    return ["squeue", "--noheader", "--all", *chosen, f"--Format={fields}"]


def parse_listing(text: str, separator: str) -> list[JobInfo]:
    """The jobs in the output of `listing_command`; fields may hold any other text, line breaks too.

    A row without an id is left out: it is no job.
    """
    parts = text.split(separator)
    size = len(FIELDS)
    records = (parts[start : start + size] for start in range(0, len(parts) - size + 1, size))
    rows = (dict(zip(FIELDS, map(_value, record), strict=True)) for record in records)
    return [_job(row) for row in rows if row["ArrayJobID"].isdigit()]


def _value(text: str) -> str:
    text = text.strip("\n ")
    return "" if text in ("N/A", "(null)", "None") else text


def _job(row: dict[str, str]) -> JobInfo:
    waits = row["State"] in WAITING_STATES
    start = parse_time(row["StartTime"])
    indices, _, throttle = row["ArrayTaskID"].partition("%")
    total = _tres(row["tres-alloc"])
    return JobInfo(
        ref=_ref(row["ArrayJobID"], indices),
        throttle=parse_number(throttle),
        state=row["State"],
        reason=row["Reason"],
        name=row["Name"],
        user=row["UserName"],
        account=row["Account"],
        qos=row["QOS"],
        partitions=tuple(filter(None, row["Partition"].split(","))),
        priority=parse_number(row["PriorityLong"]),
        nice=parse_number(row["Nice"]),
        submitted=parse_time(row["SubmitTime"]),
        started=None if waits else start,
        expected_start=start if waits else None,
        time_limit=parse_duration(row["TimeLimit"]),
        time_left=parse_duration(row["TimeLeft"]),
        node_count=parse_number(row["NumNodes"]),
        nodes=hosts_in(row["NodeList"]),
        cpus=parse_number(row["NumCPUs"]) or 0,
        gpus=_gpus(row, total),
        memory=parse_amount(total.get("mem", "")),
        dependency=row["Dependency"],
        reservation=row["Reservation"],
        features=row["Feature"],
        licenses=row["Licenses"],
        folder=row["WorkDir"],
        comment=row["Comment"],
    )


def _gpus(row: dict[str, str], total: dict[str, str]) -> int:
    """GPUs of all its nodes: as counted by a site that counts them, else as asked for."""
    if "gres/gpu" in total:
        return parse_number(total["gres/gpu"]) or 0
    typed = [
        parse_number(count) or 0 for name, count in total.items() if name.startswith("gres/gpu:")
    ]
    if typed:
        return sum(typed)
    asked = (("tres-per-job", 1), ("tres-per-node", parse_number(row["NumNodes"]) or 1))
    for field, times in (*asked, ("tres-per-task", parse_number(row["NumTasks"]) or 1)):
        if counts := gpu_counts(_GRES.sub("", row[field]).replace("=", ":")):
            return times * sum(counts.values())
    return 0


_GRES = re.compile(r"\bgres[:/]")  # until 23.11 `gres:gpu:2`, since then `gres/gpu:2`


def _tres(text: str) -> dict[str, str]:
    """`cpu=4,mem=15000M,gres/gpu=2` as a dict."""
    pairs = (item.partition("=") for item in text.split(","))
    return {name: value for name, equals, value in pairs if equals}


def _ref(job_id: str, indices: str) -> str:
    """As squeue names them; elements that can't be read are left out."""
    try:
        found = expand_indices(indices)
    except ValueError:
        found = []
    return ref_of(job_id, found)
