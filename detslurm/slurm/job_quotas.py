"""Which QOS and which associations count for a job, as sbatch will see its options, and what they
allow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from detslurm.slurm.allowance import Allowance, Charge
from detslurm.slurm.chosen_option import chosen_option
from detslurm.slurm.interface import ClusterLimits, PartitionLimits
from detslurm.slurm.qos import Association, Qos, QuotaTable, UserQuotas, ask_controller
from detslurm.slurm.quota_limits import allowance
from detslurm.slurm.request import JobRequest


def ask_allowance(request: JobRequest, limits: ClusterLimits, quotas: UserQuotas) -> Allowance:
    """What is allowed of such jobs, asked as little as need be. Raises `SlurmError`.

    Where the site enforces no limits, or what counts can't be known before, nothing is asked.
    """
    if not limits.enforces_qos or limits.changes_jobs:
        return Allowance()
    charge = _charge(request, limits.partition(request.partition), quotas)
    if charge is None:
        return Allowance()
    return allowance(charge, _table(charge, quotas), needs(request))


def ask_again(charge: Charge) -> Allowance:
    """The same later, by one call to the controller. Raises `SlurmError`."""
    return allowance(charge, ask_controller(charge.user), {})


def needs(request: JobRequest) -> dict[str, int]:
    """What one job needs at least."""
    counted = {"cpu": "cpu"}.get(request.slot_type, "gres/gpu")
    found = {"node": request.nodes, "cpu": max(request.nodes, 1)}
    if request.slots:
        found[counted] = request.slots
    return found


def _charge(request: JobRequest, here: PartitionLimits | None, quotas: UserQuotas) -> Charge | None:
    """None where it is not known which QOS or which account counts."""
    qos = qos_of(request, here, quotas)
    own = own_associations(request, here, quotas)
    default = {one.account for one in quotas.table.associations if one.is_default}
    account = next((one.account for one in own if len(own) == 1 or one.account in default), None)
    if qos is None or account is None or quotas.user is None:
        return None
    order = [qos]
    if here is not None and here.qos is not None:
        known = quotas.database.get(qos, Qos())
        order.insert("OverPartQOS" in known.flags, here.qos)
    return Charge(quotas.user, account, here.name if here is not None else "", tuple(order))


def _table(charge: Charge, quotas: UserQuotas) -> QuotaTable:
    """The controller's, with the limits that it does not show of QOS in which nothing is in use."""
    table = quotas.table
    if all(table.qos[name].shows_user for name in charge.qos if name in table.qos):
        return table
    return replace(table, qos={**table.qos, **dict(_completed(charge, table, quotas.database))})


def _completed(
    charge: Charge, table: QuotaTable, database: Mapping[str, Qos]
) -> Iterator[tuple[str, Qos]]:
    for name in charge.qos:
        shown, known = table.qos.get(name), database.get(name)
        if shown is None or known is None or shown.shows_user:
            continue
        yield name, replace(shown, per_user=known.per_user, per_account=known.per_account)


def own_associations(
    request: JobRequest, here: PartitionLimits | None, quotas: UserQuotas
) -> list[Association]:
    """The associations that this job may be one of."""
    chosen = chosen_option(request, "account", "A")
    account = chosen.value if chosen is not None else None
    partition = here.name if here is not None else request.partition
    return applicable(quotas.associations, account, partition)


def applicable(
    found: Iterable[Association], account: str | None, partition: str | None
) -> list[Association]:
    """Of an account's associations the partition's own counts, else the one for all."""
    chosen: dict[str, Association] = {}
    for one in sorted(found, key=lambda one: one.partition == partition):
        if one.partition in ("", partition) and account in (None, one.account):
            chosen[one.account] = one
    return list(chosen.values())


def qos_of(request: JobRequest, here: PartitionLimits | None, quotas: UserQuotas) -> str | None:
    """The name of the job's QOS: what it asks for, else its association's own, if that is known."""
    asked = chosen_option(request, "qos", "q")
    if asked is not None:
        return asked.value
    defaults = {one.default_qos for one in own_associations(request, here, quotas)}
    return defaults.pop() or None if len(defaults) == 1 else None
