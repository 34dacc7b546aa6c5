"""Slurm's states of jobs, and a job as the queue and the accounting know it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath

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


class QueueState:
    """Interprets a state and a reason of the queue; base of everything that stands in a queue."""

    __slots__ = ()
    state: str
    reason: str

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


@dataclass(frozen=True, slots=True)
class JobInfo(QueueState):
    """A cluster's row of one job or array element; times are unix seconds."""

    ref: str
    state: str
    reason: str = ""
    partition: str = ""
    nodes: tuple[str, ...] = ()
    restarts: int | None = None  # not in squeue's output; evidence has it
    time_left: int | None = None  # seconds; None when unlimited or unknown
    priority: int | None = None
    submitted: float | None = None
    expected_start: float | None = None  # the scheduler's guess, while it waits
    exit_code: int | None = None
    signal: int | None = None
    folder: str = ""  # its working directory: ids come again, when a cluster restarts its count

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
