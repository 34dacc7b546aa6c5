"""Time limits beyond those granted: Slurm takes such a job, unless configured otherwise, and never
starts it. What is asked here costs calls only on sites that have such limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from detslurm._quantities import counted
from detslurm.config.sbatch_args import last_given
from detslurm.slurm.interface import ClusterLimits, PartitionLimits
from detslurm.slurm.job_quotas import own_associations, qos_of
from detslurm.slurm.qos import Association, Qos, UserQuotas
from detslurm.slurm.request import JobRequest
from detslurm.slurm.submit_environment import variables_of


def time_problem(request: JobRequest, limits: ClusterLimits, quotas: UserQuotas) -> str | None:
    """Why the job of this request would never start, as far as is known. Raises `SlurmError`."""
    # What a plugin of the site makes of a job nobody knows before: it may change all of it.
    if limits.changes_jobs or _limit_from_elsewhere(request):
        return None
    here = limits.partition(request.partition)
    asked = _asked(request, here)
    if asked is None:
        return None
    problem = _refusal(asked, here, request, limits, quotas)
    if problem is None:
        return None
    wanted = "no time limit" if asked == math.inf else counted(asked, "minute")
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
    quotas: UserQuotas,
) -> str | None:
    """Ask for what counts, as little as need be, and judge."""
    own = own_associations(request, here, quotas) if limits.enforces_qos else []
    if not (
        (here is not None and _exceeds(asked, here.max_time))
        or _exceeds(asked, granted(own))
        or (limits.enforces_qos and _may_exceed(asked, quotas))
    ):
        return None
    known = quotas.database if limits.accounting else {}
    qos = qos_of(request, here, quotas) if known else None
    return refusal(asked, here, known, qos, granted(own))


def _limit_from_elsewhere(request: JobRequest) -> bool:
    """Whether the time comes from sbatch's variables or options."""
    given = last_given(request.sbatch_args, "time", "t")
    return given is not None or "SBATCH_TIMELIMIT" in variables_of(request)


def _asked(request: JobRequest, here: PartitionLimits | None) -> float | None:
    if request.time_minutes is None:
        return here.default_time if here is not None else None
    return request.time_minutes or math.inf


def refusal(
    asked: float,
    here: PartitionLimits | None,
    known: Mapping[str, Qos],
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
    longest = here.max_time if here is not None else None
    if here is not None and longest is not None and asked > longest and not lifted:
        return _said(f"partition {here.name}", longest)
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


def granted(own: Iterable[Association]) -> float | None:
    """The longest that any of them grants; None where one has no limit, or none is known."""
    found = [one.longest for one in own]
    longest = [each for each in found if each is not None]
    return max(longest) if longest and len(longest) == len(found) else None


def _exceeds(asked: float, longest: float | None) -> bool:
    return longest is not None and asked > longest


def _said(whose: str, longest: float) -> str:
    return f"{whose} gives a job at most {counted(longest, 'minute')}"


def _may_exceed(asked: float, quotas: UserQuotas) -> bool:
    """Whether the controller knows any QOS with a shorter limit."""
    known = quotas.controller.qos.values()
    return any(_exceeds(asked, each.longest) for each in known)
