"""A cluster's own records of a waiting job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from detslurm.slurm.queue_state import JobInfo


class Priority(NamedTuple):
    """A job's priority, and the parts that it is the sum of, of those that count."""

    ref: str
    total: int
    factors: Mapping[str, int]


class LimitUse(NamedTuple):
    """A limit of a QOS, an account or a license: how much there is, and how much is in use."""

    holder: str
    most: int
    used: int | None = None


class ReservedNodes(NamedTuple):
    """Nodes that are kept for some users from `start` to `end`, in unix seconds."""

    name: str
    start: float | None
    end: float | None
    nodes: tuple[str, ...] = ()
    users: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDetails:
    """The evidence of a job's wait beyond the queue and the nodes; each part may be missing.

    Attributes:
        options: Those of sbatch for another job like it; partition and time are left out.
        evaluated: When the scheduler considered it last, in unix seconds.
        restarts: How often Slurm has put it back into the queue.
        priorities: Its own, and that of a job ahead of it.
        limits: The limits of that kind, or the licenses, that count for it.
        reservations: All reservations.
        dependencies: The jobs that it depends on.
        unavailable: The missing parts, with the reasons.
    """

    options: tuple[str, ...] = ()
    evaluated: float | None = None
    restarts: int = 0
    priorities: tuple[Priority, ...] = ()
    limits: tuple[LimitUse, ...] = ()
    reservations: tuple[ReservedNodes, ...] = ()
    dependencies: tuple[JobInfo, ...] = ()
    unavailable: tuple[str, ...] = ()
