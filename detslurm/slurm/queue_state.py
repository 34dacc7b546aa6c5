"""Slurm's states of jobs, and a job as the queue and the accounting know it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from detslurm.slurm.hostlist import compress_indices, expand_indices

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
HELD_STATES = frozenset({"REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
WAITING_STATES = HELD_STATES | {"PENDING", "REQUEUED", "REQUEUE_FED"}
LAUNCH_FAILED = "launch failed requeued held"
"""Slurm's reason for a job that its nodes could not start, again and again."""
HELD_REASONS = frozenset(
    {
        "JobHeldAdmin",
        "JobHeldUser",
        "JobHoldMaxRequeue",
        "ReservationDeleted",
        "ReservationInvalid",
        "job requeued in held state",
        LAUNCH_FAILED,
        "user env retrieval failed requeued held",
    }
)


def ref_of(job_id: str, indices: Sequence[int]) -> str:
    """The reference of a job's elements, or of a plain job without any."""
    if not indices:
        return job_id
    text = compress_indices(indices)
    return f"{job_id}_[{text}]" if len(indices) > 1 else f"{job_id}_{text}"


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A row of the queue or of the accounting: a job, an element of an array, or elements that
    wait together.

    Its resources (nodes, CPUs, GPUs, memory) are those of one element. Times are unix
    seconds, durations seconds; None and the empty text mean: none, or unknown.
    """

    ref: str  # `4711`, `4711_3`, or `4711_[3-9]` of elements that wait together
    state: str
    reason: str = ""
    throttle: int | None = None  # how many elements of its array may run at once
    name: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    partitions: tuple[str, ...] = ()  # a waiting job may have named several
    priority: int | None = None
    nice: int | None = None
    submitted: float | None = None
    started: float | None = None
    expected_start: float | None = None  # the scheduler's guess, while it waits
    time_limit: int | None = None
    time_left: int | None = None
    node_count: int | None = None
    nodes: tuple[str, ...] = ()
    cpus: int = 0
    gpus: int = 0
    memory: int | None = None  # MiB
    dependency: str = ""
    reservation: str = ""
    features: str = ""
    licenses: str = ""
    folder: str = ""  # its working directory: ids come again, when a cluster restarts its count
    comment: str = ""
    restarts: int | None = None  # not in squeue's output
    exit_code: int | None = None
    signal: int | None = None

    @property
    def job_id(self) -> str:
        """The job's id; of an element its array's."""
        return self.ref.partition("_")[0]

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of its elements; none of a plain job."""
        text = self.ref.partition("_")[2]
        return (int(text),) if text.isdigit() else tuple(expand_indices(text))

    @property
    def refs(self) -> list[str]:
        """The references of its elements, or of the plain job."""
        return [f"{self.job_id}_{index}" for index in self.indices] or [self.job_id]

    @property
    def count(self) -> int:
        """How many elements it stands for; 1 for a plain job."""
        return len(self.indices) or 1

    @property
    def slots(self) -> int:
        """The slots of one element: its GPUs, or else its CPUs."""
        return self.gpus or self.cpus

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
            not HELD_REASONS.isdisjoint(self.reasons) or self.state in HELD_STATES
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
        """Whether it works elsewhere than in `folder`: another job, which was given the same id, or
        the job of the store that `folder` is in a copy of.

        The end of a path is the same wherever the file system is mounted.
        """
        if not self.folder or not folder or self.folder == folder:
            return False
        if PurePath(self.folder).parts[-3:] != PurePath(folder).parts[-3:]:
            return True
        try:
            # Two mounts of one file system have devices of their own, and the same inodes.
            return Path(self.folder).stat().st_ino != Path(folder).stat().st_ino
        except OSError:
            return False  # one of them can't be seen from here, under this name

    @property
    def run_outcome(self) -> str | None:
        """The outcome of its run to a search: "lost" when the job is over, "released" when it waits
        to start again and will request work again; None while it runs."""
        if self.running:
            return None
        return "lost" if self.final else "released"
