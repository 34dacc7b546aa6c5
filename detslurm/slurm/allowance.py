"""The limits of QOS and accounts for a job, asked as little as need be.

In Slurm's order the QOS of the partition counts before that of the job, and associations where no
QOS has a limit. A hidden limit is unknown: nothing is refused for it, and sbatch decides.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from detslurm._base.access import user_name
from detslurm._base.quantities import counted
from detslurm.config.sbatch_args import last_given
from detslurm.slurm.chosen_option import chosen_option
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.interface import Allowance, Charge, ClusterLimits, PartitionLimits
from detslurm.slurm.pending_details import QuotaLimit, Scope
from detslurm.slurm.quotas import ask, ask_controller, default_account, quotas_of
from detslurm.slurm.request import JobRequest
from detslurm.slurm.submit_environment import variables_of

_UNITS = {"gres/gpu": "GPUs", "cpu": "CPUs", "node": "nodes"}


def _that_count(limits: Iterable[QuotaLimit], thing: str) -> list[QuotaLimit]:
    """The limits on a thing that Slurm applies: of each scope that of the first QOS which has one,
    and those of associations where no QOS has any."""
    qos: dict[Scope, QuotaLimit] = {}
    others = []
    for limit in limits:
        if limit.counted == thing and limit.of_qos:
            qos.setdefault(limit.scope, limit)
        elif limit.counted == thing:
            others.append(limit)
    taken = {*qos, "own"} if {"user", "account"} & qos.keys() else {*qos}
    return [*qos.values(), *(limit for limit in others if limit.scope not in taken)]


def _in_the_way(limits: Collection[QuotaLimit], thing: str, need: float) -> QuotaLimit | None:
    """The limit because of which a job that needs so much never starts.

    A QOS may have a flag that puts it before that of the partition: both must refuse.
    """
    for limit in _that_count(limits, thing):
        same = (other for other in limits if other.of_qos and other.scope == limit.scope)
        if need > limit.most and all(need > o.most for o in same if o.counted == thing):
            return limit
    return None


def ask_allowance(request: JobRequest, limits: ClusterLimits) -> Allowance:
    """The limits of such jobs, as far as the site shows them."""
    if limits.changes_jobs:  # by a plugin, and what it changes can't be known before
        return Allowance()
    here = limits.partition(request.partition)
    charge, known = None, []
    if limits.enforces_qos:
        with suppress(SlurmError):
            user = user_name()
            text = ask_controller(user)
            charge = _charge(request, here, user, text, limits.cluster)
            known = quotas_of(text, charge) if charge is not None else []
    problem = _time_problem(request, here, known, charge, limits) or _resource_problem(
        request, known
    )
    return Allowance(*_room(known), problem, charge)


def ask_again(recorded: Mapping[str, Any]) -> Allowance:
    """The room later, by a recorded charge and one call. Raises `SlurmError`."""
    charge = msgspec.convert(recorded, Charge)
    return Allowance(*_room(quotas_of(ask_controller(charge.user), charge)), charge=charge)


def _room(known: Collection[QuotaLimit]) -> tuple[int | None, str]:
    rooms = ((limit.room, str(limit)) for limit in _that_count(known, "submitted"))
    return min(rooms, default=(None, ""))


def _charge(
    request: JobRequest, here: PartitionLimits | None, user: str, text: str, cluster: str
) -> Charge | None:
    """The holders of limits that count; None where the account or the QOS is unknown."""
    asked = chosen_option(request, "account", "A")
    account = asked.value if asked is not None else default_account(text, user)
    partition = here.name if here is not None else request.partition or ""
    qos = chosen_option(request, "qos", "q")
    name = qos.value if qos is not None else _default_qos(user, account, partition, cluster)
    if not account or not name:
        return None
    order = (here.qos, name) if here is not None and here.qos else (name,)
    return Charge(user, account, partition, order)


def _default_qos(user: str, account: str, partition: str, cluster: str) -> str:
    """The QOS of an association, of the partition's own before that for all; empty if unknown."""
    who = [f"user={user}", f"cluster={cluster}", f"account={account}"]
    columns = "format=Partition,DefaultQOS,QOS"
    rows = ask("sacctmgr", "-nP", "show", "assoc", "where", *who, columns).splitlines()
    found = dict.fromkeys(("", partition), "")
    for row in rows:
        if row.count("|") != 2:  # a line of a wrapper of the site
            continue
        where, default, allowed = row.split("|")
        # Slurm's own choice among the QOS of an association that names none.
        found[where] = default or ("normal" if "normal" in allowed.split(",") else "")
    return found[partition] or found[""]


def _resource_problem(request: JobRequest, known: Collection[QuotaLimit]) -> str | None:
    for name, need in needs(request).items():
        if (limit := _in_the_way(known, name, need)) is not None:
            return (
                f"a trial needs {need} {_UNITS[name]}, and {limit.holder} allows {limit.most}"
                f" ({limit.name}={limit.most}): it would never start. Ask for less with"
                " resources.slots_per_trial, or choose another slurm.qos, slurm.account or"
                " resources.resource_pool"
            )
    return None


def needs(request: JobRequest) -> dict[str, int]:
    """The resources that a job needs at least."""
    slots = "cpu" if request.slot_type == "cpu" else "gres/gpu"
    found = {"node": request.nodes, "cpu": max(request.nodes, 1)}
    return {**found, slots: request.slots} if request.slots else found


def _time_problem(
    request: JobRequest,
    here: PartitionLimits | None,
    known: Collection[QuotaLimit],
    charge: Charge | None,
    limits: ClusterLimits,
) -> str | None:
    """Why a job with this time limit would wait without end, though sbatch accepts it."""
    minutes = _minutes(request, here)
    if minutes is None:
        return None
    limit = _in_the_way(known, "wall", minutes)
    if (
        here is not None
        and minutes > (here.max_time or math.inf)
        and not _is_lifted(charge, limits)
    ):
        longest, whose = here.max_time or 0, f"partition {here.name}"
    elif limit is not None:
        longest, whose = limit.most, limit.holder
    else:
        return None
    wanted = "no time limit" if minutes == math.inf else counted(minutes, "minute")
    who = "slurm.time asks for" if request.time_minutes is not None else "without slurm.time it has"
    return (
        f"{who} {wanted}, and {whose} gives a job at most {counted(longest, 'minute')}: it would"
        " never start. Ask for less with slurm.time: training goes on in the next segment"
    )


def _minutes(request: JobRequest, here: PartitionLimits | None) -> float | None:
    """The time limit; None if sbatch's variables or options may set it."""
    given = last_given(request.sbatch_args, "time", "t")
    if given is not None or "SBATCH_TIMELIMIT" in variables_of(request):
        return None
    if request.time_minutes is None:
        return here.default_time if here is not None else None
    return request.time_minutes or math.inf


def _is_lifted(charge: Charge | None, limits: ClusterLimits) -> bool:
    """Whether a QOS may lift the partition's limit: the job's, or any while that is unknown."""
    if not limits.accounting:
        return False
    try:
        rows = ask("sacctmgr", "-nP", "show", "qos", "format=Name,Flags").splitlines()
    except SlurmError:
        return True
    lifting = {row.partition("|")[0] for row in rows if "PartitionTimeLimit" in row}
    return bool(lifting if charge is None else lifting & set(charge.qos))
