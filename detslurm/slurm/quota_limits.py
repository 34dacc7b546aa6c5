"""How many more jobs QOS and associations allow, and which limit no job can ever keep. Pure.

In Slurm's order: of each kind of limit the first QOS that has one counts, that of the partition
before the job's own unless the job's says otherwise; what no QOS limits, associations may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from detslurm.slurm.allowance import Allowance, Charge
from detslurm.slurm.qos import Association, Bound, JobQuota, Qos, QuotaTable

_UNITS = {"gres/gpu": "GPUs", "cpu": "CPUs", "node": "nodes"}


class QuotaLimit(NamedTuple):
    """A limit in force, by the name that Slurm's tools have for it."""

    bound: Bound
    name: str
    holder: str

    def __str__(self) -> str:
        return f"{self.name}={self.bound.most} of {self.holder}"


class Holders:
    """The QOS and the associations that count for a job, by what the controller shows."""

    def __init__(self, charge: Charge, table: QuotaTable) -> None:
        self._charge = charge
        self._qos = [(name, table.qos[name]) for name in charge.qos if name in table.qos]
        self._own = _association(charge, table)
        self._above = table.above(self._own) if self._own is not None else ()

    @property
    def submitted(self) -> list[QuotaLimit]:
        """The limits of what waits and runs."""
        return list(self._of(lambda quota: quota.submitted, "SubmitJobs"))

    @property
    def jobs(self) -> list[QuotaLimit]:
        """The limits of what runs."""
        return list(self._of(lambda quota: quota.jobs, "Jobs"))

    def tres(self, name: str) -> list[QuotaLimit]:
        """The limits of a resource: of a job's, and of what all running jobs have."""
        per_job = self._first(lambda qos: qos.per_job.get(name, Bound()), "MaxTRESPerJob")
        if not per_job and self._own is not None:
            per_job = [
                QuotaLimit(self._own.per_job.get(name, Bound()), "MaxTRES", self._name_of_own)
            ]
        found = self._of(lambda quota: quota.tres.get(name, Bound()), "TRES")
        return [
            QuotaLimit(limit.bound, f"{limit.name} {name}", limit.holder)
            for limit in (*per_job, *found)
            if limit.bound.most is not None
        ]

    def _of(self, kind: Callable[[JobQuota], Bound], what: str) -> Iterator[QuotaLimit]:
        group = self._first(lambda qos: kind(qos.group), f"Grp{what}")
        each = self._first(
            lambda qos: kind(qos.of_account(self._charge.account)), f"Max{what}PerAccount"
        ) + self._first(lambda qos: kind(qos.per_user), f"Max{what}PerUser")
        yield from (*group, *each)
        if self._own is None:
            return
        if not each:
            yield from _limits(kind(self._own.own), f"Max{what}", self._name_of_own)
        for one in (self._own, *self._above) if not group else ():
            name = self._name_of_own if one.user else f"account {one.account}"
            yield from _limits(kind(one.group), f"Grp{what}", name)

    def _first(self, kind: Callable[[Qos], Bound], name: str) -> list[QuotaLimit]:
        """That of the first QOS that has one."""
        found = (QuotaLimit(kind(qos), name, f"QOS {known}") for known, qos in self._qos)
        return [limit for limit in found if limit.bound.most is not None][:1]

    @property
    def _name_of_own(self) -> str:
        return f"your association with account {self._charge.account}"


def _association(charge: Charge, table: QuotaTable) -> Association | None:
    """The user's own in this account: that of the partition, else the one for all."""
    own = [
        one
        for one in table.associations
        if (one.user, one.account) == (charge.user, charge.account)
        and one.partition in ("", charge.partition)
    ]
    return max(own, key=lambda one: one.partition, default=None)


def _limits(bound: Bound, name: str, holder: str) -> list[QuotaLimit]:
    return [] if bound.most is None else [QuotaLimit(bound, name, holder)]


def allowance(charge: Charge, table: QuotaTable, needs: Mapping[str, int]) -> Allowance:
    """What is allowed of jobs that need these resources at least."""
    holders = Holders(charge, table)
    rooms = ((limit.bound.room or 0, str(limit)) for limit in holders.submitted)
    room, room_limit = min(rooms, default=(None, ""))
    running = [(limit.bound.most or 0, str(limit)) for limit in holders.jobs]
    for name, need in needs.items():
        for limit in holders.tres(name):
            fitting = (limit.bound.most or 0) // need
            if not fitting:
                return Allowance(problem=_impossible(name, need, limit), charge=charge)
            if "PerJob" not in limit.name and not limit.name.startswith("MaxTRES "):
                running.append((fitting, str(limit)))
    at_once, at_once_limit = min(running, default=(None, ""))
    return Allowance(room, room_limit, at_once, at_once_limit, charge=charge)


def _impossible(name: str, need: int, limit: QuotaLimit) -> str:
    return (
        f"a trial needs {need} {_UNITS[name]}, and {limit.holder} allows {limit.bound.most}"
        f" ({limit.name}={limit.bound.most}): it would never start. Ask for less with"
        " resources.slots_per_trial, or choose another slurm.qos, slurm.account or"
        " resources.resource_pool"
    )
