"""Why exactly a job waits, as far as Slurm's own records show it: at most three calls a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from detslurm.slurm import command
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.limit_use import limits_in_use
from detslurm.slurm.pending_details import (
    License,
    OtherJob,
    PartitionRules,
    PendingDetails,
    PendingRecord,
    Priority,
    ReservedNodes,
)
from detslurm.slurm.pending_records import (
    PRIORITY_FORMAT,
    dependency_ids,
    parse_licenses,
    parse_partition,
    parse_pending_record,
    parse_priorities,
    parse_reservations,
)
from detslurm.slurm.qos import ask_controller
from detslurm.slurm.queue import parse_squeue, squeue_command
from detslurm.slurm.queued_job import QueuedJob
from detslurm.slurm.reasons import Reason, limit_of, reason_of

_PATIENCE = 5.0  # evidence is optional: nobody waits long for a part of it

Answer = TypeVar("Answer")


def pending_details(job: QueuedJob, ref: str, rival: str | None) -> PendingDetails:
    """Ask for what the job's reason calls for. A call that is refused leaves its part out.

    Args:
        job: The job's row of the queue.
        ref: The job, or one of the elements that the row stands for.
        rival: A job that is ahead of it, to compare the priorities; None if there is none.
    """
    asked = _Asked()
    reason = reason_of(job.reason)
    record = asked.get("the job's record", lambda: _record(ref))
    found = PendingDetails(record=record, **_evidence(asked, reason, job, ref, rival))
    return replace(found, unavailable=asked.refused)


def _evidence(
    asked: _Asked, reason: Reason, job: QueuedJob, ref: str, rival: str | None
) -> dict[str, Any]:
    """What else there is to know for a reason of this kind, with at most two more calls."""
    if limit := limit_of(reason.code):
        table = asked.get("limits and their use", lambda: ask_controller(job.user))
        return {"limits": limits_in_use(table, job, limit) if table is not None else ()}
    if reason.category == "dependency":
        ids = dependency_ids(job.dependency)
        others = asked.get("the jobs it depends on", lambda: _jobs(ids)) if ids else ()
        return {"dependencies": others or ()}
    if reason.category in ("held", "other") or reason.code == "JobArrayTaskLimit":
        return {}
    if (reason.category == "quota" or reason.code.startswith("Partition")) and job.partitions:
        return {"partition": asked.get("its rules", lambda: _partition(job.partitions[0]))}
    if reason.code == "Licenses":
        return {"licenses": asked.get("licenses", _licenses) or ()}
    refs = [ref, rival] if rival else [ref]
    return {
        "priorities": asked.get("the parts of its priority", lambda: _priorities(refs)) or (),
        "reservations": asked.get("reservations", _reservations) or (),
    }


class _Asked:
    """What was refused, so that the output can name what it lacks."""

    def __init__(self) -> None:
        self.refused: tuple[str, ...] = ()

    def get(self, what: str, ask: Callable[[], Answer]) -> Answer | None:
        try:
            return ask()
        except SlurmError as error:
            self.refused += (f"{what} ({error.message.splitlines()[0]})",)
            return None


def _answer(*argv: str) -> str:
    return command.run(argv, patience=_PATIENCE, within=_PATIENCE)


def _record(ref: str) -> PendingRecord | None:
    return parse_pending_record(_answer("scontrol", "show", "job", ref), ref)


def _priorities(refs: Iterable[str]) -> tuple[Priority, ...]:
    ids = ",".join(ref.partition("_")[0] for ref in refs)
    return parse_priorities(
        _answer("sprio", "--noheader", f"--jobs={ids}", f"--format={PRIORITY_FORMAT}")
    )


def _licenses() -> tuple[License, ...]:
    return parse_licenses(_answer("scontrol", "--oneliner", "show", "licenses"))


def _reservations() -> tuple[ReservedNodes, ...]:
    return parse_reservations(_answer("scontrol", "--oneliner", "show", "reservation"))


def _partition(name: str) -> PartitionRules | None:
    return parse_partition(_answer("scontrol", "--oneliner", "show", "partition", name))


def _jobs(ids: list[str]) -> tuple[OtherJob, ...]:
    try:
        found = parse_squeue(_answer(*squeue_command(ids))).values()
    except SlurmError as refusal:
        if "invalid job id" in refusal.message.lower():  # they are over, and forgotten
            return ()
        raise
    return tuple(OtherJob(job.ref, job.state, job.reason, job.time_left) for job in found)
