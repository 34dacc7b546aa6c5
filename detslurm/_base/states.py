"""How runs end, in one set of words, and the states of trials and experiments."""

from __future__ import annotations

import enum
from typing import Final, Literal, assert_never

RunOutcome = Literal[
    "completed",  # its code ended in order
    "invalid_hp",  # its code refused the hyperparameters
    "error",  # it failed, more often than `max_restarts` allows or without hope
    "canceled",
    "killed",
    "restart",  # it failed, and the next run follows
    "preempted",
    "time_limit",
    "ended",  # by Slurm, for a reason that it did not give
    "paused",
    "lost",  # its job is gone without an end record
    "out_of_ops",  # the search wants no more of it for now: it may promote it, or end
    # Only a search distinguishes these, in its events and of the trials that it has closed:
    "stopped",  # it left as the search demanded
    "non_retryable",  # it failed for lack of the metric that the search goes by
    "released",  # its worker waits in the queue again
]
"""The outcome of a run, in end records and in the events of a search."""

_WORDS: Final = {
    "out_of_ops": "left to the search",
    "stopped": "left to the search",
    "released": "left to the search",
    "time_limit": "time limit",
    "ended": "ended by Slurm",
    "lost": "job lost",
    "restart": "failed",
    "error": "failed",
    "non_retryable": "failed",
    "invalid_hp": "hyperparameters refused",
}


def outcome_words(outcome: str | None) -> str | None:
    """How a run ended, in words for people, as the report has them; None while it goes on."""
    return None if outcome is None else _WORDS.get(outcome, outcome)


COMPLETED: Final = "completed"
INVALID_HP: Final = "invalid_hp"
ERROR: Final = "error"
CANCELED: Final = "canceled"
KILLED: Final = "killed"
RESTART: Final = "restart"
PREEMPTED: Final = "preempted"
TIME_LIMIT: Final = "time_limit"
PAUSED: Final = "paused"
ENDED: Final = "ended"
LOST: Final = "lost"
OUT_OF_OPS: Final = "out_of_ops"

# The state of a trial whose run ended so; after any other outcome the trial goes on.
TERMINAL: Final = {
    COMPLETED: "COMPLETED",
    INVALID_HP: "COMPLETED",
    ERROR: "ERROR",
    CANCELED: "CANCELED",
    KILLED: "CANCELED",
}


class FailureKind(enum.StrEnum):
    """The failures that node agents recognise; an end record has the kind as its failure's digest.

    The digest of an error of the code is a hash. `spares_restart` has an entry for each kind.
    """

    STARTUP_HOOK = "startup-hook"  # startup-hook.sh failed
    NOEXEC = "noexec"  # the working directory is mounted noexec
    CONTAINER = "container"  # the container could not begin


_KINDS: Final = frozenset(FailureKind)


def spares_restart(digest: str | None, earlier: str | None) -> bool:
    """Whether a failed run uses no restart: its site failed, for the first time in a row.

    `earlier` is the digest for the run before; None if that run was no restart.
    """
    if digest not in _KINDS or digest == earlier:
        return False
    kind = FailureKind(digest)
    match kind:
        case FailureKind.CONTAINER:
            return True
        case FailureKind.STARTUP_HOOK | FailureKind.NOEXEC:
            return False
        case _:
            assert_never(kind)


KILLED_BY_SIGNAL: Final = frozenset({128 + 2, 128 + 9, 128 + 15})
"""The exit codes of what SIGINT, SIGKILL or SIGTERM ended."""

UNKNOWN: Final = "UNKNOWN"
"""The state of a trial whose files can't be read: it may be running, or over."""

FINISHED: Final = frozenset({"COMPLETED", "ERROR", "CANCELED"})
