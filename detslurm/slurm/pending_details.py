"""A cluster's own records of a waiting job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from detslurm.slurm.queue_state import JobInfo

Scope = Literal["job", "user", "account", "own", "group"]


class QuotaLimit(NamedTuple):
    """A limit of a QOS or an association.

    Attributes:
        holder: "QOS small", "account ml", or a user's part of an account: "account ml for alice".
        name: Slurm's own, such as "MaxTRESPerUser gres/gpu".
        scope: The jobs that it counts: each job alone, those of a user or an account in the QOS,
            those of a user's association, or all of the holder (`group`).
        counted: "jobs", "submitted", "wall" (minutes), or a resource such as "gres/gpu".
        used: How much of it is in use; None if unknown.
    """

    holder: str
    name: str
    scope: Scope
    counted: str
    most: int
    used: int | None

    def __str__(self) -> str:
        return f"{self.name}={self.most} of {self.holder}"

    @property
    def of_qos(self) -> bool:
        """Whether it belongs to a QOS, else to an association."""
        return self.holder.startswith("QOS ")

    @property
    def room(self) -> int:
        """How much more is allowed."""
        return max(self.most - (self.used or 0), 0)


class Priority(NamedTuple):
    """A job's priority, and the parts that it is the sum of, of those that count."""

    ref: str
    total: int
    factors: Mapping[str, int]


MAINTENANCE = "maintenance"
"""In place of the users of a reservation: no jobs run there."""


class ReservedNodes(NamedTuple):
    """Nodes that are kept for some users from `start` to `end`, in unix seconds."""

    name: str
    start: float
    end: float
    nodes: tuple[str, ...] = ()
    users: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDetails:
    """The evidence of a job's wait beyond the queue and the nodes; each part may be missing.

    Attributes:
        options: Those of sbatch for another job like it; partition and time are left out.
        evaluated: When the scheduler considered it last, in unix seconds.
        priorities: Its own, and that of a job ahead of it.
        unavailable: The missing parts, with the reasons.
    """

    options: tuple[str, ...] = ()
    evaluated: float | None = None
    priorities: tuple[Priority, ...] = ()
    limits: tuple[QuotaLimit, ...] = ()
    reservations: tuple[ReservedNodes, ...] = ()
    dependencies: tuple[JobInfo, ...] = ()
    unavailable: tuple[str, ...] = ()
