"""Time limits that nobody grants: Slurm takes such a job, unless told otherwise, and never starts
it. What is asked here costs a call only on sites that have such limits."""

from __future__ import annotations

import math
import os
import pwd
import re
from dataclasses import dataclass

from detslurm.slurm import command
from detslurm.slurm.interface import ClusterLimits, PartitionLimits, SlurmError
from detslurm.slurm.queue import parse_duration
from detslurm.slurm.request import JobRequest

_PATIENCE = 20.0
_TIME = re.compile("--time(?:=|$)|-t")


@dataclass(frozen=True, slots=True)
class Qos:
    """What a QOS says of time limits: the longest in minutes, and whether it overrides others."""

    longest: float | None = None
    flags: frozenset[str] = frozenset()


def time_problem(request: JobRequest, limits: ClusterLimits, qos: str | None) -> str | None:
    """Why the job of this request would wait for ever, as far as can be told.

    `qos` is the name that the request has, wherever it has it from. Raises `SlurmError`.
    """
    if _others_say(request, limits):
        return None
    here = limits.partition(request.partition)
    asked = _asked(request, here)
    if asked is None:
        return None
    longest = here.max_time if here is not None else None
    if not _exceeds(asked, longest) and not _may_exceed(asked, limits):
        return None
    known = ask_qos() if limits.accounting else {}
    qos = qos or (_default_qos(limits, request) if known else None)
    said = refusal(asked, here, known, qos)
    if said is None:
        return None
    wanted = "no time limit" if asked == math.inf else f"{asked:g} minutes"
    who = "slurm.time asks for" if request.time_minutes is not None else "without slurm.time it has"
    return (
        f"{who} {wanted}, and {said}: it would wait for ever."
        " Ask for less with slurm.time: training goes on in the next segment by itself"
    )


def _others_say(request: JobRequest, limits: ClusterLimits) -> bool:
    """Whether the partition or the time comes from elsewhere: sbatch's variables or options, or a
    plugin of the site, which finds a partition for jobs that name none."""
    no_partition, no_time = request.partition is None, request.time_minutes is None
    return (
        (no_partition and (limits.changes_jobs or "SBATCH_PARTITION" in os.environ))
        or (no_time and "SBATCH_TIMELIMIT" in os.environ)
        or any(_TIME.match(word) for line in request.sbatch_args for word in line.split())
    )


def _asked(request: JobRequest, here: PartitionLimits | None) -> float | None:
    if request.time_minutes is None:
        return here.default_time if here is not None else None
    return request.time_minutes or math.inf


def refusal(
    asked: float, here: PartitionLimits | None, known: dict[str, Qos], qos: str | None
) -> str | None:
    """Which limit is in the way of a job that asks for so many minutes."""
    own = known.get(qos or "")
    lifted = own is not None and "PartitionTimeLimit" in own.flags
    # An unknown QOS may lift the partition's limit only if there is one that can.
    lifted |= own is None and any("PartitionTimeLimit" in each.flags for each in known.values())
    if here is not None and _exceeds(asked, here.max_time) and not lifted:
        return _said(f"partition {here.name}", here.max_time)
    # The first of them that has a limit counts: the partition's own, unless the job's is above it.
    order = [(f"QOS {qos}", own)]
    if here is not None and here.qos is not None:
        above = own is not None and "OverPartQOS" in own.flags
        order.insert(above, (f"the QOS of partition {here.name}", known.get(here.qos)))
    for name, one in order:
        if one is not None and one.longest is not None:
            return _said(name, one.longest) if asked > one.longest else None
    return None


def _exceeds(asked: float, longest: float | None) -> bool:
    return longest is not None and asked > longest


def _said(whose: str, longest: float | None) -> str:
    return f"{whose} gives a job at most {longest:g} minutes"


def _may_exceed(asked: float, limits: ClusterLimits) -> bool:
    """Whether the controller knows any QOS with a shorter limit."""
    if not limits.enforces_qos:
        return False
    said = command.call(["scontrol", "-o", "show", "assoc_mgr", "flags=qos"])
    return any(asked > int(wall) for wall in re.findall(r"\bMaxWallPJ=(\d+)", said.stdout))


def ask_qos() -> dict[str, Qos]:
    """All QOS by name, with one call to the accounting database."""
    said = _sacctmgr("show", "qos", "format=Name,MaxWall,Flags")
    return {name: Qos(_minutes(wall), frozenset(flags.split(","))) for name, wall, flags in said}


def _default_qos(limits: ClusterLimits, request: JobRequest) -> str | None:
    """The QOS of a request that names none, where there is no doubt."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return None
    who = [f"user={user}", f"cluster={limits.cluster}"]
    rows = _sacctmgr("show", "assoc", "where", *who, "format=Account,DefaultQOS,Partition")
    names = {qos for account, qos, _ in rows if request.account in (None, account)}
    return names.pop() if len(names) == 1 else None


def _sacctmgr(*words: str) -> list[list[str]]:
    argv = ["sacctmgr", "--noheader", "--parsable2", *words]
    rows = [line.split("|") for line in command.run(argv, patience=_PATIENCE).splitlines()]
    if any(len(row) != 3 for row in rows):
        raise SlurmError(f"sacctmgr: {rows!r} can't be understood")
    return rows


def _minutes(text: str) -> float | None:
    seconds = parse_duration(text)
    return None if seconds is None else seconds / 60
