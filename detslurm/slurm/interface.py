"""What the rest of detslurm may ask of a cluster, and the answers it gets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from detslurm.slurm.request import JobRequest

FINAL_STATES = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
WAITING_STATES = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
LAUNCH_FAILED = "launch failed requeued held"
"""Slurm's reason for a job that its nodes could not start, again and again."""
HELD_REASONS = frozenset(
    {"JobHeldUser", "JobHeldAdmin", "job requeued in held state", LAUNCH_FAILED}
)


class SlurmError(Exception):
    """A cluster refused: its message, and what the user can do about it."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}\n{advice}" if advice else message)
        self.message = message
        self.advice = advice


@dataclass(frozen=True, slots=True)
class JobInfo:
    """What a cluster knows of one job or array element; times are unix seconds."""

    ref: str
    state: str
    reason: str = ""
    partition: str = ""
    nodes: tuple[str, ...] = ()
    restarts: int | None = None  # not in squeue's output; evidence has it
    time_left: int | None = None  # seconds; None when unlimited or unknown
    priority: int | None = None
    submitted: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    folder: str = ""  # its working directory: ids come again, when a cluster restarts its count

    @property
    def waiting(self) -> bool:
        """True while the job stands in the queue, held or not."""
        return self.state in WAITING_STATES

    @property
    def reasons(self) -> list[str]:
        """Why it waits: of elements that are listed together there may be several reasons."""
        # squeue prints blanks where scontrol's record has underscores.
        return [word.replace("_", " ") for word in self.reason.split(",")]

    @property
    def held(self) -> bool:
        """True when the job waits for a release."""
        return self.waiting and (
            not HELD_REASONS.isdisjoint(self.reasons)
            or self.state in {"REQUEUE_HOLD", "SPECIAL_EXIT"}
        )

    @property
    def final(self) -> bool:
        """True when the job is over and will not run again unless resubmitted."""
        return self.state in FINAL_STATES

    @property
    def running(self) -> bool:
        """True while the job holds an allocation (starting and ending included)."""
        return not self.waiting and not self.final

    @property
    def ending(self) -> bool:
        """True when it holds no allocation, or not for long."""
        return not self.running or self.state == "COMPLETING"

    def is_foreign_to(self, folder: str) -> bool:
        """Whether it works elsewhere than in `folder`: another job, which was given the same id.

        The end of a path is the same wherever the file system is mounted.
        """
        if not self.folder or not folder:
            return False
        return PurePath(self.folder).parts[-3:] != PurePath(folder).parts[-3:]

    @property
    def run_outcome(self) -> str | None:
        """The outcome of its run to a search: "lost" when the job is over, "released" when it waits
        to start again and will request work again; None while it runs."""
        if self.running:
            return None
        return "lost" if self.final else "released"


@dataclass(frozen=True, slots=True)
class PartitionLimits:
    """One partition: what a job there may ask for and what may happen to it."""

    name: str
    default: bool = False
    up: bool = True
    max_time: int | None = None  # minutes; None = unlimited
    default_time: int | None = None
    max_nodes: int | None = None
    preempt_mode: str = "OFF"  # OFF, REQUEUE, CANCEL, SUSPEND, GANG (and combinations with commas)
    grace_time: int = 0  # seconds
    priority_tier: int = 1
    nodes: tuple[str, ...] = ()
    cpus_per_node: int | None = None  # of the largest node
    gpus_per_node: int | None = None
    gpu_types: tuple[str, ...] = ()
    qos: str | None = None  # the partition's own

    @property
    def requeues(self) -> bool:
        """True when a preempted job of this partition is requeued by Slurm."""
        return "REQUEUE" in self.preempt_mode


@dataclass(frozen=True, slots=True)
class ClusterLimits:
    """The rules of a cluster that submission and preemption depend on."""

    cluster: str = ""
    max_array_size: int = 1001
    max_array_tasks: int | None = None
    max_job_count: int = 10000
    kill_wait: int = 30
    job_requeue: bool = True
    preempt_mode: str = "OFF"
    preempt_send_user_signal: bool = False
    accounting: bool = True
    enforces_qos: bool = False
    changes_jobs: bool = False  # by a plugin of the site, as they are submitted
    gres_types: tuple[str, ...] = ()
    tres_gpus: bool = False
    mpi_default: str = "none"
    partitions: Mapping[str, PartitionLimits] = field(default_factory=dict)

    @property
    def default_partition(self) -> str | None:
        """Name of the partition that a job without --partition lands in."""
        return next((p.name for p in self.partitions.values() if p.default), None)

    def partition(self, name: str | None) -> PartitionLimits | None:
        """The limits of a partition (None: the default one), or None when unknown."""
        wanted = name or self.default_partition
        return self.partitions.get(wanted) if wanted else None


class Cluster(Protocol):
    """Slurm or the embedded local cluster; refs are "1234" or "1234_5"."""

    name: str

    def script(self, request: JobRequest) -> str:
        """The batch script that `submit` would hand over."""

    def check(self, request: JobRequest) -> list[str]:
        """The cluster's objection to this request, without queueing it; empty = fine."""

    def time_problem(self, request: JobRequest) -> str | None:
        """Why a job with this time limit would wait without end, though it can be queued."""

    def submit(self, request: JobRequest) -> str:
        """Queue the request with one call and return the job id."""

    def cancel(self, refs: Collection[str], *, pending_only: bool = False) -> None:
        """End these jobs (TERM, then KILL); those that are over already are skipped."""

    def notify(self, refs: Collection[str], *, steps: bool = False) -> None:
        """Let a runner read the intents; `steps`: let code without a runner save and leave."""

    def requeue(self, ref: str, *, hold: bool = False, only_running: bool = False) -> None:
        """Put exactly this job or array element back into the queue.

        With `only_running` one that is over or being ended stays so, without an error.
        """

    def hold(self, refs: Collection[str]) -> None:
        """Keep these from starting; running ones are held at their next requeue."""

    def release(self, refs: Collection[str]) -> None:
        """Let held jobs start again."""

    def update(self, ref: str, **fields: str | int) -> None:
        """Change fields of a queued job, by Slurm's names (nice=10, ArrayTaskThrottle=4)."""

    def query(self, job_ids: Collection[str]) -> dict[str, JobInfo]:
        """Everything the queue knows of these jobs, by ref, with one call; absent = unknown."""

    def evidence(
        self, job_ids: Collection[str], *, since: float | None = None
    ) -> dict[str, JobInfo]:
        """What accounting or the controller remembers of jobs that left the queue."""

    def limits(self) -> ClusterLimits:
        """The cluster's rules, asked for once."""


def split_ref(ref: str) -> tuple[str, int | None]:
    """("1234", 5) of "1234_5", ("1234", None) of "1234"; ValueError for anything else."""
    job, underscore, index = ref.partition("_")
    if not job.isascii() or not job.isdigit() or (underscore and not index.isdigit()):
        raise ValueError(f"not a job reference: {ref!r}")
    return job, int(index) if underscore else None


def job_ids_of(refs: Collection[str]) -> Sequence[str]:
    """The distinct job ids of some refs, in their order."""
    return list(dict.fromkeys(split_ref(ref)[0] for ref in refs))
