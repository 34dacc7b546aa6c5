"""The words for how runs end and how trials and experiments stand."""

from __future__ import annotations

from typing import Final

# Outcomes of a run.
COMPLETED: Final = "completed"
INVALID_HP: Final = "invalid_hp"
ERROR: Final = "error"
CANCELED: Final = "canceled"
KILLED: Final = "killed"
RESTART: Final = "restart"
PREEMPTED: Final = "preempted"
TIME_LIMIT: Final = "time_limit"
PAUSED: Final = "paused"
NODE_FAILED: Final = "node_failed"
LOST: Final = "lost"

# The state of a trial whose run ended so; after any other outcome the trial goes on.
TERMINAL: Final = {
    COMPLETED: "COMPLETED",
    INVALID_HP: "COMPLETED",
    ERROR: "ERROR",
    CANCELED: "CANCELED",
    KILLED: "CANCELED",
}

TRIAL_STATES: Final = ("QUEUED", "RUNNING", "PAUSED", "COMPLETED", "ERROR", "CANCELED")
FINISHED: Final = frozenset({"COMPLETED", "ERROR", "CANCELED"})
