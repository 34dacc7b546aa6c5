"""What a cluster's own records show of a job that waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from detslurm.slurm.queue_state import QueueState


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRecord:
    """What the controller's record of a waiting job adds to its row of the queue.

    Times are unix seconds, durations seconds; None and the empty text mean: none, or unknown.
    """

    ref: str
    state: str
    reason: str = ""
    eligible: float | None = None
    expected_start: float | None = None
    evaluated: float | None = None  # when the scheduler looked at it last
    wanted_nodes: tuple[str, ...] = ()
    restarts: int | None = None
    options: tuple[str, ...] = ()  # sbatch's, for another job like it; partition and time aside


@dataclass(frozen=True, slots=True)
class Priority:
    """A job's priority, and the parts that it is the sum of, of those that count."""

    ref: str
    total: int
    factors: Mapping[str, int]
    nice: int = 0


@dataclass(frozen=True, slots=True)
class License:
    """A license that the cluster counts."""

    name: str
    total: int
    used: int


@dataclass(frozen=True, slots=True)
class ReservedNodes:
    """Nodes that are kept for somebody from `start` to `end`, in unix seconds."""

    name: str
    start: float | None
    end: float | None
    nodes: tuple[str, ...] = ()
    users: str = ""
    accounts: str = ""
    maintenance: bool = False


@dataclass(frozen=True, slots=True)
class PartitionRules:
    """What a partition demands of its jobs; minutes and empty texts mean: no such rule."""

    name: str
    state: str
    max_seconds: int | None = None
    max_nodes: int | None = None
    allowed: Mapping[str, str] = field(default_factory=dict)  # "accounts" -> "ml,physics"


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A limit of a QOS or an account: whose it is, and what of it is in use, if that is known."""

    who: str
    most: int
    used: int | None = None

    @property
    def room(self) -> int:
        """How much more is allowed, at least as far as is known."""
        return max(self.most - (self.used or 0), 0)


@dataclass(frozen=True, slots=True)
class OtherJob(QueueState):
    """A job that another one waits for."""

    ref: str
    state: str
    reason: str = ""
    time_left: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDetails:
    """The evidence of a job's wait beyond the queue and the nodes; each part may be missing."""

    record: PendingRecord | None = None
    priorities: tuple[Priority, ...] = ()
    limits: tuple[LimitUse, ...] = ()
    licenses: tuple[License, ...] = ()
    reservations: tuple[ReservedNodes, ...] = ()
    partition: PartitionRules | None = None
    dependencies: tuple[OtherJob, ...] = ()
    unavailable: tuple[str, ...] = ()  # what could not be had, and why


@dataclass(frozen=True, slots=True)
class StartTest:
    """Slurm's answer: when the job would start, in unix seconds, or why it would not.

    Exactly one of the two is given.
    """

    start: float | None = None
    refusal: str = ""
