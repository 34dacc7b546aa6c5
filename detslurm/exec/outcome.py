"""Judges an ended attempt and decides the next step: a pure function of facts.

The precedence is Determined's: killed by the user; preempted and acknowledged (no restart used,
whatever the exit code); exit 0 (done, also if early); error (a restart is used).
"""

from __future__ import annotations

import enum
import signal
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from detslurm.exec.failure import Failure

from detslurm._base.states import ENDED, KILLED_BY_SIGNAL, RunOutcome


class Cause(enum.StrEnum):
    """Why the code was asked to stop; the user's latest intent wins over Slurm's reason."""

    KILL = "kill"
    CANCEL = "cancel"
    PAUSE = "pause"
    PREEMPTION = "preemption"
    TIME_LIMIT = "time_limit"
    ENDING = "ending"  # Slurm ends the whole job, for a reason that is not recognised
    STOP = "stop"  # the search wants no more of this trial


class Action(enum.Enum):
    """The runner's next step after the run's end is recorded."""

    STOP = "stop"
    RETRY = "retry"
    REQUEUE = "requeue"
    HOLD = "hold"


class AttemptFacts(msgspec.Struct, frozen=True):
    """The facts of one ended attempt.

    `exit_code` follows the shell: 128 + N for death by signal N. `new_checkpoint`: this run has
    committed a checkpoint. `stalled`: the trial has no checkpoint, and this run reported no step
    past those of the last run that did. `restarts` counts those used before it. `non_retryable` is
    why the next run would fail in the same way. `resting`: the search has no more for the trial
    now, though it may promote it later. `why` is the failure where the exit code does not show it,
    `error` the last line of the exception that ended it. `failure` is an error of the code that
    ended this run at once, without a step gained, and `earlier` the error that made this run a
    restart; `restart_repeated` is the user's choice to try all the same. `unprepared`: the code
    never began, by the fault of a node. `bad_node` is a node that is to blame, because others work:
    the next run goes elsewhere. `got_sigint`: SIGINT came. `oom_kills` counts the processes that
    the kernel killed for lack of memory. `store_failed`: the store could not be used when the run
    ended. `pause_reason` is why the experiment is paused, if not by its user, `ended_by` Slurm's
    line about the job's end.
    """

    exit_code: int
    cause: Cause | None = None
    acknowledged: bool = False
    invalid_hp: str | None = None
    new_checkpoint: bool = False
    stalled: bool = False
    cancel_retries: str | None = None
    non_retryable: str | None = None
    restarts: int = 0
    max_restarts: int = 5
    resting: bool = False
    why: str | None = None
    error: str | None = None
    failure: Failure | None = None
    earlier: Failure | None = None
    restart_repeated: bool = False
    pause_reason: str | None = None
    unprepared: bool = False
    bad_node: str | None = None
    got_sigint: bool = False
    oom_kills: int = 0
    store_failed: bool = False
    ended_by: str | None = None


class Decision(msgspec.Struct, frozen=True):
    """The outcome to record for the run, why, and the next step."""

    outcome: RunOutcome
    reason: str
    action: Action


def decide(facts: AttemptFacts) -> Decision:
    """The outcome of an attempt."""
    if facts.cause is Cause.KILL:
        return Decision("killed", "killed by the user", Action.STOP)
    if facts.cause is Cause.STOP:
        return Decision("completed", "stopped by the search", Action.STOP)
    if facts.cause is not None and (facts.acknowledged or _cut_short(facts)):
        again = facts.cause is Cause.TIME_LIMIT and facts.stalled
        return _failed(facts) if again else _stopped(facts)
    if facts.invalid_hp is not None:
        return Decision("invalid_hp", facts.invalid_hp, Action.STOP)
    if facts.exit_code == 0 and facts.resting:
        return Decision("out_of_ops", "the search may promote it later", Action.STOP)
    if facts.exit_code == 0:
        asked = facts.cause in (Cause.PREEMPTION, Cause.TIME_LIMIT)  # and it may have saved
        more = " after it was asked to stop, without should_preempt()" if asked else ""
        return Decision("completed", f"the code exited with 0{more}{_doubts(facts)}", Action.STOP)
    return _failed(facts)


def _doubts(facts: AttemptFacts) -> str:
    """Name the signs against a success that the exit code claims."""
    count = facts.oom_kills
    killed = f"; the kernel killed {count} of its processes for lack of memory" if count else ""
    return f"{'; SIGINT had come before' if facts.got_sigint else ''}{killed}"


def _cut_short(facts: AttemptFacts) -> bool:
    # The code did not acknowledge, but it was ended by the signal that came with the request: that
    # is not its failure. At a time limit it must at least have saved something, or a script
    # that never checkpoints would be chained without end.
    if facts.store_failed and facts.exit_code and facts.invalid_hp is None:
        return True  # nor is it that the code could not save while the store was away
    if facts.exit_code not in KILLED_BY_SIGNAL:
        return False
    return facts.cause is not Cause.TIME_LIMIT or facts.new_checkpoint


_RESTARTED = {
    "requeued": "requeued by its user, an administrator or its own code",
    "node_failed": "a node of its job failed",
    "cancelled": "asked to stop by scancel --signal=TERM",
}


def _stopped(facts: AttemptFacts) -> Decision:
    cause = facts.cause
    if cause is Cause.CANCEL:
        return Decision("canceled", "canceled by the user", Action.STOP)
    if cause is Cause.PAUSE:
        reason = facts.pause_reason
        why = f"paused: {reason}" if reason else "paused by the user"
        return Decision("paused", why, Action.HOLD)
    if cause is Cause.TIME_LIMIT:
        return Decision("time_limit", "the job's time limit was near", Action.REQUEUE)
    if cause is Cause.ENDING:
        # A user may have cancelled the job; Slurm itself requeues jobs that it preempts to the end.
        return Decision(ENDED, "Slurm ended the job without a known reason", Action.STOP)
    why = _RESTARTED.get(facts.ended_by or "", "preempted by Slurm")
    return Decision("preempted", why, Action.REQUEUE)


_AFTER_FAILURE = {None: Action.RETRY, Cause.PAUSE: Action.HOLD, Cause.ENDING: Action.STOP}


def _failed(facts: AttemptFacts) -> Decision:
    how = _how(facts)
    if facts.cause is Cause.CANCEL:
        return Decision("canceled", f"canceled by the user; {how}", Action.STOP)
    if facts.bad_node is not None and facts.cancel_retries is None:
        reason = f"{how} on {facts.bad_node}, while other nodes work; the next run goes elsewhere"
        return Decision("restart", reason, Action.REQUEUE)
    if facts.non_retryable is not None:
        return Decision("error", f"{facts.non_retryable}; a restart would not help", Action.STOP)
    if facts.cancel_retries is not None:
        reason = f"{how}; log policy {facts.cancel_retries!r} forbids a restart"
        return Decision("error", reason, Action.STOP)
    if facts.failure is not None and facts.failure == facts.earlier and not facts.restart_repeated:
        again = "the last two runs failed with the same error, and a restart would not help"
        reason = f"{facts.failure.error}; {again} (restart_repeated_failures: true tries it)"
        return Decision("error", reason, Action.STOP)
    if facts.restarts >= facts.max_restarts:
        reason = f"{how} after {facts.restarts} of {facts.max_restarts} restarts"
        return Decision("error", reason, Action.STOP)
    reason = f"{how}; restart {facts.restarts + 1} of {facts.max_restarts}"
    action = _AFTER_FAILURE.get(facts.cause, Action.REQUEUE)
    if facts.unprepared and action is Action.RETRY:
        action = Action.REQUEUE  # here it would fail at once, as often as it may
    return Decision("restart", reason, action)


def _how(facts: AttemptFacts) -> str:
    if facts.why is not None:
        return facts.why
    if facts.cause is Cause.TIME_LIMIT and facts.stalled:
        return "the code left at the time limit, without a checkpoint and no further than before"
    if facts.cause is Cause.TIME_LIMIT and facts.exit_code in KILLED_BY_SIGNAL:
        return "the code reached the time limit without saving a checkpoint"
    error = "" if facts.error is None else f"{facts.error}; "
    return f"{error}the code {describe_exit(facts.exit_code)}{_doubts(facts)}"


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
