"""Slurm's states of jobs, and what they mean."""

from __future__ import annotations

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
    """What a state and a reason of the queue mean; base of everything that stands in a queue."""

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
