"""Why exactly a job waits, as far as Slurm's own records show it: at most three calls a job."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from detslurm._base import contract
from detslurm.slurm import command
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.hostlist import hosts_in
from detslurm.slurm.interface import Charge
from detslurm.slurm.job_record import options_of, parse_job_records
from detslurm.slurm.limits import known, parse_record
from detslurm.slurm.pending_details import (
    MAINTENANCE,
    PendingDetails,
    Priority,
    QuotaLimit,
    ReservedNodes,
)
from detslurm.slurm.queue import parse_number, parse_squeue, parse_time, squeue_command
from detslurm.slurm.queue_state import JobInfo
from detslurm.slurm.quotas import ask, ask_controller, quotas_of
from detslurm.slurm.reasons import Limit, Reason, reason_of

_TEST_PATIENCE = 10.0  # seconds
_ASIDE = ("--job-name=", "--partition=", "--time=", "--chdir=")
_FACTORS = ("age", "association", "fair share", "job size", "partition", "QOS", "site", "TRES")
RESERVATIONS = ("scontrol", "--oneliner", "show", "reservation")
_SPRIO = ("sprio", "--noheader", "--format=%i|%Y|%A|%B|%F|%J|%P|%Q|%S|%T|%N")


def pending_details(job: JobInfo, ref: str, rival: str | None) -> PendingDetails:
    """Ask for what the job's reason calls for. A call that is refused leaves its part out.

    `ref` is the job, or an element that its row stands for; `rival` is a job that is ahead of it,
    if there is one, to compare the priorities.
    """
    found: dict[str, Any] = {}
    missing: list[str] = []
    for what, question in _questions(reason_of(job.reason), job, ref, rival):
        try:
            found |= question()
        except SlurmError as error:
            missing.append(f"{what} ({error.message.splitlines()[0]})")
    return PendingDetails(**found, unavailable=tuple(missing))


def _questions(
    reason: Reason, job: JobInfo, ref: str, rival: str | None
) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """The questions for a reason of this kind: each part's name, and the call."""
    yield "the job's record", lambda: parse_pending_record(ask("scontrol", "show", "job", ref))
    if limit := reason.limit:
        yield (
            "limits and their use",
            lambda: {"limits": limits_in_use(ask_controller(job.user), job, limit)},
        )
    elif reason.category == "dependency" and (ids := dependency_ids(job.dependency)):
        yield "the jobs it depends on", lambda: {"dependencies": _jobs(ids)}
    elif reason.for_nodes:
        ids = [name.partition("_")[0] for name in (ref, rival) if name]
        sprio = (*_SPRIO, f"--jobs={','.join(ids)}")
        yield "the parts of its priority", lambda: {"priorities": parse_priorities(ask(*sprio))}
        yield "reservations", lambda: {"reservations": parse_reservations(ask(*RESERVATIONS))}


def _jobs(ids: list[str]) -> tuple[JobInfo, ...]:
    try:
        return tuple(parse_squeue(ask(*squeue_command(ids))).values())
    except SlurmError as refusal:
        if "invalid job id" in refusal.message.lower():  # they are over, and forgotten
            return ()
        raise


def dependency_ids(text: str) -> list[str]:
    """The jobs in `afterok:12(failed),afterany:13_*(unfulfilled)`."""
    return list(dict.fromkeys(re.findall(r"(?<=:)\d+(?=[_+():,?]|$)", text)))


def limits_in_use(text: str, job: JobInfo, limit: Limit) -> tuple[QuotaLimit, ...]:
    """The limits of the kind that a reason names, as far as the controller shows them."""
    partition = job.partitions[0] if job.partitions else ""
    return tuple(
        quota
        for quota in quotas_of(text, Charge(job.user, job.account, partition, (job.qos,)))
        if (quota.of_qos, quota.scope) == (limit.of_qos, limit.scope)
        if quota.counted.partition(":")[0] == limit.counted
    )


def parse_pending_record(text: str) -> dict[str, Any]:
    """Fields of `PendingDetails` in the output of `scontrol show job` of a job that waits."""
    for job in parse_job_records(text):
        if job.get("JobState") == "PENDING":
            return {
                "options": tuple(o for o in options_of(job) if not o.startswith(_ASIDE)),
                "evaluated": parse_time(job.get("LastSchedEval")),
            }
    return {}


def parse_priorities(text: str) -> tuple[Priority, ...]:
    """The rows that sprio prints; rows without figures are left out."""
    found = []
    for line in text.splitlines():
        job, *figures = (part.strip() for part in line.split("|"))
        if len(figures) != len(_FACTORS) + 2 or not figures[0].isdigit():
            continue  # such as "Unable to find jobs"
        total, *parts, nice = figures
        factors = zip((*_FACTORS, "nice"), (*map(_points, parts), -_points(nice)), strict=True)
        found.append(Priority(job, int(total), {name: n for name, n in factors if n}))
    return tuple(found)


def _points(text: str) -> int:
    """Of a figure, or of several such as `cpu=1000,mem=250` together."""
    several = re.findall(r"=(-?\d+)", text)
    return sum(map(int, several)) if several else parse_number(text) or 0


def parse_reservations(text: str) -> tuple[ReservedNodes, ...]:
    """The output of `RESERVATIONS`; reservations without times are left out."""
    found = []
    records = (parse_record(line) for line in text.splitlines())
    for record in (record for record in records if "ReservationName" in record):
        start, end = parse_time(record.get("StartTime")), parse_time(record.get("EndTime"))
        users = known(record.get("Users")) or known(record.get("Accounts"))
        if "MAINT" in record.get("Flags", "").split(","):
            users = MAINTENANCE
        if start is not None and end is not None:
            nodes = hosts_in(known(record.get("Nodes")))
            found.append(ReservedNodes(record["ReservationName"], start, end, nodes, users))
    return tuple(found)


def start_of(options: Sequence[str]) -> float:
    """Slurm's estimate for a job with these options of sbatch, in unix seconds.

    `sbatch --test-only` queues nothing. Raises `SlurmError` with Slurm's refusal.
    """
    # Nothing of a job's own, and no options that the user's shell would add to those given.
    env = {**contract.inheritable(command.environment(), "SBATCH_"), "SLURM_TIME_FORMAT": "%s"}
    argv = ["sbatch", "--test-only", *options, "--wrap=true"]
    done = command.call(argv, env=env, within=_TEST_PATIENCE)
    if done is None:
        raise SlurmError(f"no answer within {_TEST_PATIENCE:g} seconds")
    return parse_test(done.stderr + done.stdout)


def parse_test(text: str) -> float:
    """The start that `sbatch --test-only` prints. Raises `SlurmError` for a refusal."""
    if found := re.search(r"to start at (\d+) ", text):
        return float(found[1])
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no answer"]
    raise SlurmError(re.sub(r"^(?:sbatch: |error: |allocation failure: )+", "", lines[-1]))
