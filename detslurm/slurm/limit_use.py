"""Which limits of QOS and accounts count for a job, and how much of them is in use. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from detslurm.slurm.pending_details import LimitUse
from detslurm.slurm.qos import Association, Bound, JobQuota, Qos, QuotaTable
from detslurm.slurm.queued_job import QueuedJob
from detslurm.slurm.reasons import Limit


def limits_in_use(table: QuotaTable, row: QueuedJob, limit: Limit) -> tuple[LimitUse, ...]:
    """The limits of that kind that count for the job, as far as the table shows them."""
    return tuple(
        LimitUse(who, bound.most, bound.used)
        for who, bound in _bounds(table, row, limit)
        if bound.most is not None
    )


def _bounds(table: QuotaTable, row: QueuedJob, limit: Limit) -> Iterator[tuple[str, Bound]]:
    if limit.of_qos:
        known = {row.qos: table.qos[row.qos]} if row.qos in table.qos else table.qos
        for name, qos in known.items():
            yield from _of_qos(name, qos, row, limit)
        return
    for one in table.associations:
        if (one.account, one.user) == (row.account, row.user):
            yield from _of_account(one, table.above(one), limit)


def _of_qos(name: str, qos: Qos, row: QueuedJob, limit: Limit) -> Iterator[tuple[str, Bound]]:
    who = f"QOS {name}"
    if limit.scope == "job":
        yield from _named(who, _tres(qos.per_job, limit))
    elif limit.scope == "group":
        yield from _named(who, _quota(qos.group, limit))
    elif limit.scope == "account":
        yield from _named(f"{who} for an account", _quota(qos.of_account(row.account), limit))
    elif limit.scope != "node":
        yield from _named(f"{who} for a user", _quota(qos.per_user, limit))


def _of_account(
    one: Association, above: Iterable[Association], limit: Limit
) -> Iterator[tuple[str, Bound]]:
    mine = f"account {one.account} for {one.user}"
    if limit.scope == "job":
        yield from _named(mine, _tres(one.per_job, limit))
    elif limit.scope == "own":
        yield from _named(mine, _quota(one.own, limit))
    elif limit.scope == "group":
        yield from _named(mine, _quota(one.group, limit))
        for account in above:
            yield from _named(f"account {account.account}", _quota(account.group, limit))


def _named(who: str, bounds: Iterable[Bound]) -> Iterator[tuple[str, Bound]]:
    return ((who, bound) for bound in bounds)


def _quota(quota: JobQuota, limit: Limit) -> list[Bound]:
    whole = {"jobs": quota.jobs, "submitted": quota.submitted}
    return [whole[limit.counted]] if limit.counted in whole else _tres(quota.tres, limit)


def _tres(tres: Mapping[str, Bound], limit: Limit) -> list[Bound]:
    """Those of that resource, of all its types: `gres/gpu` and `gres/gpu:a100`."""
    counted = limit.counted
    return [bound for name, bound in tres.items() if name.partition(":")[0] == counted]
