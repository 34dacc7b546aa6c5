"""Time limits beyond those granted: Slurm takes such a job, unless configured otherwise, and never
starts it. What is asked here costs calls only on sites that have such limits."""

from __future__ import annotations

import math
import os
import pwd
import re
from dataclasses import dataclass

from detslurm.config.sbatch_args import last_given
from detslurm.slurm import command
from detslurm.slurm.interface import ClusterLimits, PartitionLimits, SlurmError
from detslurm.slurm.queue import parse_duration
from detslurm.slurm.request import JobRequest

_PATIENCE = 5.0  # what can't be asked is not checked; the job is then queued all the same


@dataclass(frozen=True, slots=True)
class Qos:
    """A QOS's time limits: the longest in minutes, and whether it overrides others."""

    longest: float | None = None
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Association:
    """One of the user's: its account, the partition it is for (or all), and its limits."""

    account: str
    partition: str = ""
    default_qos: str = ""
    longest: float | None = None


def time_problem(request: JobRequest, limits: ClusterLimits) -> str | None:
    """Why the job of this request would never start, as far as is known. Raises `SlurmError`."""
    # What a plugin of the site makes of a job nobody knows before: it may change all of it.
    if limits.changes_jobs or _limit_from_elsewhere(request):
        return None
    here = limits.partition(request.partition)
    asked = _asked(request, here)
    if asked is None:
        return None
    problem = _refusal(asked, here, request, limits)
    if problem is None:
        return None
    wanted = "no time limit" if asked == math.inf else f"{asked:g} minutes"
    who = "slurm.time asks for" if request.time_minutes is not None else "without slurm.time it has"
    return (
        f"{who} {wanted}, and {problem}: it would never start."
        " Ask for less with slurm.time: training goes on in the next segment"
    )


def _refusal(
    asked: float,
    here: PartitionLimits | None,
    request: JobRequest,
    limits: ClusterLimits,
) -> str | None:
    """Ask for what counts, as little as need be, and judge."""
    own = _own_associations(request, here, limits) if limits.enforces_qos else []
    if not (
        (here is not None and _exceeds(asked, here.max_time))
        or _exceeds(asked, granted(own))
        or _may_exceed(asked, limits)
    ):
        return None
    known = ask_qos() if limits.accounting else {}
    qos = _named(request.qos, "qos", "q", request)
    if not qos and known:
        named = {one.default_qos for one in own or _own_associations(request, here, limits)}
        qos = named.pop() if len(named) == 1 else None
    return refusal(asked, here, known, qos, granted(own))


def _limit_from_elsewhere(request: JobRequest) -> bool:
    """Whether the partition or the time comes from sbatch's variables or options."""
    return (
        (request.partition is None and "SBATCH_PARTITION" in os.environ)
        or (request.time_minutes is None and "SBATCH_TIMELIMIT" in os.environ)
        or last_given(request.sbatch_args, "time", "t") is not None
    )


def _named(own: str | None, option: str, letter: str, request: JobRequest) -> str | None:
    """What counts of an option: sbatch's variable where it is not removed (`submit_environment`),
    then the script's last line, where the user's own options stand."""
    variable = os.environ.get(f"SBATCH_{option.upper()}") if own is None else None
    return variable or last_given(request.sbatch_args, option, letter) or own


def _asked(request: JobRequest, here: PartitionLimits | None) -> float | None:
    if request.time_minutes is None:
        return here.default_time if here is not None else None
    return request.time_minutes or math.inf


def refusal(
    asked: float,
    here: PartitionLimits | None,
    known: dict[str, Qos],
    qos: str | None,
    own_longest: float | None = None,
) -> str | None:
    """Which limit is in the way of a job that asks for this number of minutes.

    `own_longest` is what the user's association grants where no QOS sets anything.
    """
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
    if own_longest is None or asked <= own_longest:
        return None
    # A QOS that is not known may grant more.
    more = own is None and any(asked <= (each.longest or 0) for each in known.values())
    return None if more else _said("your account", own_longest)


def granted(own: list[Association]) -> float | None:
    """The longest that any of them grants; None where one has no limit, or none is known."""
    longest = [one.longest for one in own if one.longest is not None]
    return max(longest) if longest and len(longest) == len(own) else None


def _exceeds(asked: float, longest: float | None) -> bool:
    return longest is not None and asked > longest


def _said(whose: str, longest: float | None) -> str:
    return f"{whose} gives a job at most {longest:g} minutes"


def _may_exceed(asked: float, limits: ClusterLimits) -> bool:
    """Whether the controller knows any QOS with a shorter limit."""
    if not limits.enforces_qos:
        return False
    text = _answer(["scontrol", "-o", "show", "assoc_mgr", "flags=qos"])
    return any(asked > int(wall) for wall in re.findall(r"\bMaxWallPJ=(\d+)", text))


def ask_qos() -> dict[str, Qos]:
    """All QOS by name, with one call to the accounting database."""
    rows = _sacctmgr("show", "qos", "format=Name,MaxWall,Flags")
    return {name: Qos(_minutes(wall), frozenset(flags.split(","))) for name, wall, flags in rows}


def _own_associations(
    request: JobRequest, here: PartitionLimits | None, limits: ClusterLimits
) -> list[Association]:
    """The associations that this job may be one of, with one call to the accounting database."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return []
    who = [f"user={user}", f"cluster={limits.cluster}"]
    columns = "format=Account,Partition,DefaultQOS,QOS,MaxWall"
    rows = _sacctmgr("show", "assoc", "where", *who, columns)
    found = [
        Association(account, at, default or _fallback(qos), _minutes(wall))
        for account, at, default, qos, wall in rows
    ]
    partition = here.name if here is not None else request.partition
    return applicable(found, _named(request.account, "account", "A", request), partition)


def _fallback(qos: str) -> str:
    """Slurm's own default among the QOS of an association that names none."""
    return "normal" if "normal" in qos.split(",") else ""


def applicable(
    found: list[Association], account: str | None, partition: str | None
) -> list[Association]:
    """Of an account's associations the partition's own counts, else the one for all."""
    chosen: dict[str, Association] = {}
    for one in sorted(found, key=lambda one: one.partition == partition):
        if one.partition in ("", partition) and account in (None, one.account):
            chosen[one.account] = one
    return list(chosen.values())


def _sacctmgr(*words: str) -> list[list[str]]:
    argv = ["sacctmgr", "--noheader", "--parsable2", *words]
    rows = [line.split("|") for line in _answer(argv).splitlines()]
    if any(len(row) != words[-1].count(",") + 1 for row in rows):
        raise SlurmError(f"sacctmgr: {rows!r} can't be understood")
    return rows


def _answer(argv: list[str]) -> str:
    return command.run(argv, patience=_PATIENCE, within=_PATIENCE)


def _minutes(text: str) -> float | None:
    seconds = parse_duration(text)
    return None if seconds is None else seconds / 60
