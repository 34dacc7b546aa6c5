"""Reading the records that show why a job waits: of the job, priorities, licenses, reservations."""

from __future__ import annotations

import re
from collections.abc import Mapping

from detslurm.slurm.hostlist import hosts_in
from detslurm.slurm.job_record import options_of, parse_job_records
from detslurm.slurm.limits import known, parse_record
from detslurm.slurm.pending_details import (
    License,
    PartitionRules,
    PendingRecord,
    Priority,
    ReservedNodes,
)
from detslurm.slurm.queue import parse_duration, parse_number, parse_time

_FACTORS = ("age", "association", "fair share", "job size", "partition", "QOS", "site", "TRES")
PRIORITY_FORMAT = "%i|%Y|%A|%B|%F|%J|%P|%Q|%S|%T|%N"
"""What `parse_priorities` reads, as sprio's --format."""
_ASIDE = ("--job-name=", "--partition=", "--time=", "--chdir=")


def parse_pending_record(text: str, ref: str) -> PendingRecord | None:
    """The record of a waiting job in the output of `scontrol show job`; None without any."""
    waiting = [job for job in parse_job_records(text) if job.get("JobState") == "PENDING"]
    if not waiting:
        return None
    job = waiting[0]
    return PendingRecord(
        ref=ref,
        state=job["JobState"],
        reason=job.get("Reason", ""),
        eligible=parse_time(job.get("EligibleTime")),
        expected_start=parse_time(job.get("StartTime")),
        evaluated=parse_time(job.get("LastSchedEval")),
        wanted_nodes=hosts_in(known(job.get("ReqNodeList"))),
        restarts=parse_number(job.get("Restarts")),
        options=tuple(o for o in options_of(job) if not o.startswith(_ASIDE)),
    )


def parse_priorities(text: str) -> tuple[Priority, ...]:
    """The rows that sprio prints; what has no figures is left out."""
    found = []
    for line in text.splitlines():
        job, *figures = (part.strip() for part in line.split("|"))
        if len(figures) != len(_FACTORS) + 2 or not figures[0].isdigit():
            continue  # such as "Unable to find jobs"
        total, *parts = figures
        factors = {name: _points(value) for name, value in zip(_FACTORS, parts, strict=False)}
        counting = {name: value for name, value in factors.items() if value}
        found.append(Priority(job, int(total), counting, parse_number(parts[-1]) or 0))
    return tuple(found)


def _points(text: str) -> int:
    """Of a figure, or of several such as `cpu=1000,mem=250` together."""
    several = re.findall(r"=(-?\d+)", text)
    return sum(map(int, several)) if several else parse_number(text) or 0


def parse_licenses(text: str) -> tuple[License, ...]:
    """The licenses that `scontrol --oneliner show licenses` prints."""
    records = (parse_record(line) for line in text.splitlines() if line.startswith("LicenseName="))
    return tuple(
        License(
            one["LicenseName"],
            parse_number(one.get("Total")) or 0,
            parse_number(one.get("Used")) or 0,
        )
        for one in records
    )


def parse_reservations(text: str) -> tuple[ReservedNodes, ...]:
    """The reservations that `scontrol --oneliner show reservation` prints."""
    lines = (line for line in text.splitlines() if line.startswith("ReservationName="))
    return tuple(map(_reservation, map(parse_record, lines)))


def _reservation(record: Mapping[str, str]) -> ReservedNodes:
    return ReservedNodes(
        record["ReservationName"],
        parse_time(record.get("StartTime")),
        parse_time(record.get("EndTime")),
        hosts_in(known(record.get("Nodes"))),
        known(record.get("Users")),
        known(record.get("Accounts")),
        "MAINT" in record.get("Flags", "").split(","),
    )


def parse_partition(text: str) -> PartitionRules | None:
    """The rules in the output of `scontrol --oneliner show partition NAME`."""
    lines = [line for line in text.splitlines() if line.startswith("PartitionName=")]
    if not lines:
        return None
    record = parse_record(lines[0])
    lists = {"accounts": "AllowAccounts", "QOS": "AllowQos", "groups": "AllowGroups"}
    return PartitionRules(
        record["PartitionName"],
        record.get("State", ""),
        parse_duration(record.get("MaxTime", "")),
        parse_number(record.get("MaxNodes")),
        {what: record[key] for what, key in lists.items() if record.get(key, "ALL") != "ALL"},
    )


def dependency_ids(text: str) -> list[str]:
    """The jobs in `afterok:12(failed),afterany:13_*(unfulfilled)`."""
    return list(dict.fromkeys(re.findall(r"(?<=:)\d+(?=[_+():,?]|$)", text)))
