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
from detslurm.slurm.pending_details import LimitUse, PendingDetails, Priority, ReservedNodes
from detslurm.slurm.queue import parse_number, parse_squeue, parse_time, squeue_command
from detslurm.slurm.queue_state import JobInfo
from detslurm.slurm.quotas import ask_controller, quotas_of
from detslurm.slurm.reasons import Limit, Reason, limit_of, reason_of

_PATIENCE = 5.0  # seconds: evidence is optional
_TEST_PATIENCE = 10.0
_ASIDE = ("--job-name=", "--partition=", "--time=", "--chdir=")
_FACTORS = ("age", "association", "fair share", "job size", "partition", "QOS", "site", "TRES")
_SPRIO = ("sprio", "--noheader", "--format=%i|%Y|%A|%B|%F|%J|%P|%Q|%S|%T|%N")


def pending_details(job: JobInfo, ref: str, rival: str | None) -> PendingDetails:
    """Ask for what the job's reason calls for. A call that is refused leaves its part out.

    Args:
        job: The job's row of the queue.
        ref: The job, or an element that the row stands for.
        rival: A job that is ahead of it, to compare the priorities; None if there is none.
    """
    found: dict[str, Any] = {}
    missing: list[str] = []
    for what, ask in _questions(reason_of(job.reason), job, ref, rival):
        try:
            found |= ask()
        except SlurmError as error:
            missing.append(f"{what} ({error.message.splitlines()[0]})")
    return PendingDetails(**found, unavailable=tuple(missing))


def _questions(
    reason: Reason, job: JobInfo, ref: str, rival: str | None
) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """The questions for a reason of this kind: each part's name, and the call."""
    yield "the job's record", lambda: parse_pending_record(_ask("scontrol", "show", "job", ref))
    if limit := limit_of(reason.code):
        yield "limits and their use", lambda: {"limits": limits_in_use(_quotas(job), job, limit)}
    elif reason.category == "dependency" and (ids := dependency_ids(job.dependency)):
        yield "the jobs it depends on", lambda: {"dependencies": _jobs(ids)}
    elif reason.code == "Licenses":
        show = ("scontrol", "--oneliner", "show", "licenses")
        yield "licenses", lambda: {"limits": parse_licenses(_ask(*show))}
    elif reason.category == "resources" and not reason.code.startswith("Partition"):
        ids = [name.partition("_")[0] for name in (ref, rival) if name]
        sprio = (*_SPRIO, f"--jobs={','.join(ids)}")
        yield "the parts of its priority", lambda: {"priorities": parse_priorities(_ask(*sprio))}
        show = ("scontrol", "--oneliner", "show", "reservation")
        yield "reservations", lambda: {"reservations": parse_reservations(_ask(*show))}


def _ask(*argv: str) -> str:
    return command.run(argv, patience=_PATIENCE, within=_PATIENCE)


def _quotas(job: JobInfo) -> str:
    return ask_controller(job.user)


def _jobs(ids: list[str]) -> tuple[JobInfo, ...]:
    try:
        return tuple(parse_squeue(_ask(*squeue_command(ids))).values())
    except SlurmError as refusal:
        if "invalid job id" in refusal.message.lower():  # they are over, and forgotten
            return ()
        raise


def dependency_ids(text: str) -> list[str]:
    """The jobs in `afterok:12(failed),afterany:13_*(unfulfilled)`."""
    return list(dict.fromkeys(re.findall(r"(?<=:)\d+(?=[_+():,?]|$)", text)))


def limits_in_use(text: str, job: JobInfo, limit: Limit) -> tuple[LimitUse, ...]:
    """The limits of the kind that a reason names, as far as the controller shows them."""
    partition = job.partitions[0] if job.partitions else ""
    found = quotas_of(text, Charge(job.user, job.account, partition, (job.qos,)))
    whose = {"user": " for a user", "account": " for an account"}
    return tuple(
        LimitUse(one.holder + whose.get(one.scope, ""), one.most, one.used)
        for one in found
        if (one.of_qos, one.scope) == (limit.of_qos, limit.scope)
        if one.counted.partition(":")[0] == limit.counted
    )


def parse_pending_record(text: str) -> dict[str, Any]:
    """Fields of `PendingDetails` in the output of `scontrol show job` of a job that waits."""
    for job in parse_job_records(text):
        if job.get("JobState") == "PENDING":
            options = tuple(one for one in options_of(job) if not one.startswith(_ASIDE))
            restarts = parse_number(job.get("Restarts")) or 0
            evaluated = parse_time(job.get("LastSchedEval"))
            return {"options": options, "restarts": restarts, "evaluated": evaluated}
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


def parse_licenses(text: str) -> tuple[LimitUse, ...]:
    """The licenses that `scontrol --oneliner show licenses` prints."""
    records = (parse_record(line) for line in text.splitlines() if line.startswith("LicenseName="))
    found = (
        (r["LicenseName"], parse_number(r.get("Total")), parse_number(r.get("Used")))
        for r in records
    )
    return tuple(
        LimitUse(name, most, used)
        for name, most, used in found
        if most is not None and used is not None
    )


def parse_reservations(text: str) -> tuple[ReservedNodes, ...]:
    """The reservations that `scontrol --oneliner show reservation` prints."""
    found = []
    for line in text.splitlines():
        if line.startswith("ReservationName="):
            record = parse_record(line)
            maintenance = "MAINT" in record.get("Flags", "").split(",")
            users = known(record.get("Users")) or known(record.get("Accounts"))
            reserved = ReservedNodes(
                record["ReservationName"],
                parse_time(record.get("StartTime")),
                parse_time(record.get("EndTime")),
                hosts_in(known(record.get("Nodes"))),
                "maintenance" if maintenance else users,
            )
            found.append(reserved)
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
