"""The outcomes of runs, and the states of trials and experiments."""

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
ENDED: Final = "ended"  # by Slurm, for a reason that it did not give
PAUSED: Final = "paused"
LOST: Final = "lost"
OUT_OF_OPS: Final = "out_of_ops"  # paused by the search until it is promoted, or the search ends

# The state of a trial whose run ended so; after any other outcome the trial goes on.
TERMINAL: Final = {
    COMPLETED: "COMPLETED",
    INVALID_HP: "COMPLETED",
    ERROR: "ERROR",
    CANCELED: "CANCELED",
    KILLED: "CANCELED",
}

# The state of a trial that the search has closed, by the outcome it gave; all others completed.
CLOSED: Final = {"errored": "ERROR", "canceled": "CANCELED"}

UNKNOWN: Final = "UNKNOWN"
"""The state of a trial whose files can't be read: it may be running, or over."""

FINISHED: Final = frozenset({"COMPLETED", "ERROR", "CANCELED"})
