"""The ends of jobs that left the queue: accounting's record, or else the controller's memory."""

from __future__ import annotations

from collections.abc import Collection

from detslurm.slurm import command
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.hostlist import expand_hostlist, expand_indices
from detslurm.slurm.interface import job_ids_of
from detslurm.slurm.job_record import parse_job_records
from detslurm.slurm.queue import parse_number, parse_time
from detslurm.slurm.queue_state import JobInfo

_FIELDS = "JobID,State,ExitCode,Partition,Submit,NodeList,WorkDir"
_PATIENCE = 20.0
_NO_INDEX = "4294967294"  # an array's rest whose elements were all cancelled while they waited


def ask(refs: Collection[str], since: float | None, accounting: bool) -> dict[str, JobInfo]:
    """The last known state of these jobs, by ref; absent means unknown."""
    if accounting:
        try:
            return parse_sacct(command.run(sacct_command(refs, since), patience=_PATIENCE))
        except SlurmError:
            pass  # the database is down: the controller may still remember
    found: dict[str, JobInfo] = {}
    for job_id in job_ids_of(refs):
        done = command.call(["scontrol", "show", "job", job_id])
        if done.returncode == 0:
            found.update(parse_scontrol(done.stdout))
    return found


def sacct_command(refs: Collection[str], since: float | None) -> list[str]:
    """One sacct for all jobs."""
    return [*sacct_for_jobs(refs, since), "--allocations", f"--format={_FIELDS}"]


def sacct_for_jobs(refs: Collection[str], since: float | None) -> list[str]:
    """The begin of one sacct for all jobs; without an explicit start it would cover today only.

    Jobs that ended before it are left out, by the controller's clock: a day is more than that and
    the clock of who submitted can differ, and less than ids of jobs take to be used again.
    """
    start = "1970-01-02" if since is None else f"uts{max(1, int(since) - 86400)}"
    ids = ",".join(job_ids_of(refs))
    return ["sacct", "--noheader", "--parsable2", f"--starttime={start}", f"--jobs={ids}"]


def parse_sacct(text: str) -> dict[str, JobInfo]:
    """Ref -> last record of each job in sacct's output."""
    found: dict[str, JobInfo] = {}
    for line in text.splitlines():
        fields = line.split("|", 6)
        if len(fields) != 7 or "." in fields[0]:
            continue
        job, state, exit_code, partition, submit, nodes, folder = fields
        for ref in _refs(job):
            found[ref] = JobInfo(
                ref=ref,
                state=state.split()[0].rstrip("+") if state else "UNKNOWN",  # "CANCELLED by 1000"
                partitions=tuple(filter(None, partition.split(","))),
                nodes=_nodes(nodes),
                submitted=parse_time(submit),
                exit_code=_exit(exit_code)[0],
                signal=_exit(exit_code)[1],
                folder=folder,
            )
    return found


def parse_scontrol(text: str) -> dict[str, JobInfo]:
    """Ref -> state in the output of `scontrol show job`."""
    found: dict[str, JobInfo] = {}
    for record in parse_job_records(text):
        if "JobState" not in record:
            continue
        job = record.get("JobId", "")
        if record.get("ArrayTaskId", _NO_INDEX) != _NO_INDEX:
            job = f"{record['ArrayJobId']}_{record['ArrayTaskId']}"
        for ref in _refs(job):
            found[ref] = JobInfo(
                ref=ref,
                state=record["JobState"],
                reason=record.get("Reason", "").replace("None", ""),
                partitions=tuple(filter(None, record.get("Partition", "").split(","))),
                nodes=_nodes(record.get("NodeList", "")),
                restarts=int(record.get("Restarts") or 0),
                submitted=parse_time(record.get("SubmitTime")),
                exit_code=_exit(record.get("ExitCode", ""))[0],
                signal=_exit(record.get("ExitCode", ""))[1],
                folder=record.get("WorkDir", ""),
            )
    return found


def _refs(job: str) -> list[str]:
    """The records of one job or several; of a heterogeneous job its first part, which leads it."""
    job, _, part = job.partition("+")
    array, underscore, index = job.partition("_")
    if part.strip("0") or not array.isdigit():
        return []
    if not underscore:
        return [job]
    return [f"{array}_{i}" for i in expand_indices(index)]


def _nodes(text: str) -> tuple[str, ...]:
    if text in ("", "(null)", "None assigned"):
        return ()
    return tuple(expand_hostlist(text))


def _exit(text: str) -> tuple[int | None, int | None]:
    """(exit code, signal) of Slurm's `code:signal`."""
    code, _, signal = text.partition(":")
    return parse_number(code), parse_number(signal) or None
