"""What an ended attempt means, and what to do next: a pure function of facts.

The precedence is Determined's: killed by the user; preempted and acknowledged (no restart used,
whatever the exit code); exit 0 (done, also if early); error (a restart is used).
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detslurm.exec.failure import Failure

from detslurm.store.states import ENDED


class Cause(enum.StrEnum):
    """Why the code was asked to stop; the user's latest intent wins over Slurm's reason."""

    KILL = "kill"
    CANCEL = "cancel"
    PAUSE = "pause"
    PREEMPTION = "preemption"
    TIME_LIMIT = "time_limit"
    ENDING = "ending"  # Slurm ends the whole job, for a reason that is not recognised
    STOP = "stop"  # the search wants no more of this trial


class Next(enum.Enum):
    """What the runner does after the run's end is recorded."""

    LEAVE = "leave"
    AGAIN = "again"
    REQUEUE = "requeue"
    HOLD = "hold"


@dataclass(frozen=True)
class Ended:
    """The facts of one ended attempt.

    `exit_code` follows the shell: 128 + N for death by signal N. `new_checkpoint` says whether this
    run committed one; `restarts` counts those used before it; `non_retryable` says why the next run
    would fail in the same way; `resting` says that the search has no more for the trial now, though
    it may promote it later. `why` is what went wrong where the exit code does not tell. `failure`
    is an error of the code that ended this run at once, without a step gained, and `earlier` the
    one that made this run a restart; `restart_repeated` is the user's choice to try all the same.
    """

    exit_code: int
    cause: Cause | None = None
    acknowledged: bool = False
    invalid_hp: str | None = None
    new_checkpoint: bool = False
    cancel_retries: str | None = None
    non_retryable: str | None = None
    restarts: int = 0
    max_restarts: int = 5
    resting: bool = False
    why: str | None = None
    failure: Failure | None = None
    earlier: Failure | None = None
    restart_repeated: bool = False


@dataclass(frozen=True)
class Decision:
    """The outcome to record for the run, why, and the next step."""

    outcome: str
    reason: str
    next: Next


_DEADLY = frozenset(128 + s for s in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT))


def decide(ended: Ended) -> Decision:
    """The outcome of an attempt."""
    if ended.cause is Cause.KILL:
        return Decision("killed", "killed by the user", Next.LEAVE)
    if ended.cause is Cause.STOP:
        return Decision("completed", "stopped by the search", Next.LEAVE)
    if ended.cause is not None and (ended.acknowledged or _cut_short(ended)):
        return _stopped(ended.cause)
    if ended.invalid_hp is not None:
        return Decision("invalid_hp", ended.invalid_hp, Next.LEAVE)
    if ended.exit_code == 0 and ended.resting:
        return Decision("out_of_ops", "the search has no more for it now", Next.LEAVE)
    if ended.exit_code == 0:
        return Decision("completed", "the code exited with 0", Next.LEAVE)
    return _failed(ended)


def _cut_short(ended: Ended) -> bool:
    # The code did not acknowledge, but it was ended by the signal that came with the request: that
    # is no fault of its own. At a time limit it must at least have saved something, or a script
    # that never checkpoints would be chained for ever.
    if ended.exit_code not in _DEADLY:
        return False
    return ended.cause is not Cause.TIME_LIMIT or ended.new_checkpoint


def _stopped(cause: Cause) -> Decision:
    if cause is Cause.CANCEL:
        return Decision("canceled", "canceled by the user", Next.LEAVE)
    if cause is Cause.PAUSE:
        return Decision("paused", "paused by the user", Next.HOLD)
    if cause is Cause.TIME_LIMIT:
        return Decision("time_limit", "the job's time limit was near", Next.REQUEUE)
    if cause is Cause.ENDING:
        # Somebody may have cancelled the job; what Slurm preempts to the end, it requeues itself.
        return Decision(ENDED, "Slurm ended the job and did not say why", Next.LEAVE)
    return Decision("preempted", "preempted by Slurm", Next.REQUEUE)


_AFTER_FAILURE = {None: Next.AGAIN, Cause.PAUSE: Next.HOLD, Cause.ENDING: Next.LEAVE}


def _failed(ended: Ended) -> Decision:
    how = _how(ended)
    if ended.cause is Cause.CANCEL:
        return Decision("canceled", f"canceled by the user; {how}", Next.LEAVE)
    if ended.non_retryable is not None:
        return Decision("error", f"{ended.non_retryable}; a restart would not help", Next.LEAVE)
    if ended.cancel_retries is not None:
        reason = f"{how}; log policy {ended.cancel_retries!r} forbids a restart"
        return Decision("error", reason, Next.LEAVE)
    if ended.failure is not None and ended.failure == ended.earlier and not ended.restart_repeated:
        reason = f"the code failed in the same way twice, at once: {ended.failure.error}"
        more = "a restart would not help (restart_repeated_failures: true tries it)"
        return Decision("error", f"{reason}; {more}", Next.LEAVE)
    if ended.restarts >= ended.max_restarts:
        reason = f"{how} after {ended.restarts} of {ended.max_restarts} restarts"
        return Decision("error", reason, Next.LEAVE)
    reason = f"{how}; restart {ended.restarts + 1} of {ended.max_restarts}"
    following = _AFTER_FAILURE.get(ended.cause, Next.REQUEUE)
    return Decision("restart", reason, following)


def _how(ended: Ended) -> str:
    if ended.why is not None:
        return ended.why
    if ended.cause is Cause.TIME_LIMIT and ended.exit_code in _DEADLY:
        return "the code reached the time limit without saving a checkpoint"
    return f"the code {describe_exit(ended.exit_code)}"


def describe_exit(exit_code: int) -> str:
    """How a process ended, for people: `exited with 3`, `was killed by SIGTERM`."""
    if exit_code == 128 + signal.SIGKILL:
        return "was killed by SIGKILL (out of memory?)"
    if exit_code > 128:
        try:
            return f"was killed by {signal.Signals(exit_code - 128).name}"
        except ValueError:
            pass
    return f"exited with {exit_code}"
