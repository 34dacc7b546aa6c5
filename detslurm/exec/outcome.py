"""Judges an ended attempt and decides the next step: a pure function of facts.

Three enumerations have the words. A `Cause` is a request to stop; a `FailureKind` is a failure
that an agent recognises, without such a request; the `RunOutcome` is recorded and shown.

The precedence is Determined's: killed by the user; preempted and acknowledged (no restart used,
whatever the exit code); exit 0 (done, also if early); error (a restart is used).
"""

from __future__ import annotations

import enum
import signal
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

import msgspec

from detslurm._base.states import ENDED, KILLED_BY_SIGNAL, FailureKind, RunOutcome, spares_restart

if TYPE_CHECKING:
    from detslurm.exec.failure import Failure


class Cause(enum.StrEnum):
    """Why the code was asked to stop; code that fails by itself has a `FailureKind` at most.

    `meaning` has an entry for each.
    """

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


class Decision(msgspec.Struct, frozen=True):
    """The outcome to record for the run, why, and the next step."""

    outcome: RunOutcome
    reason: str
    action: Action


class Meaning(NamedTuple):
    """The consequences of a cause.

    Attributes:
        rank: Of several causes the highest rank counts.
        text: The cause in the log, when the code is asked to stop.
        decision: The end of code that left as it was asked to.
        after_failure: The next step after code that failed meanwhile; None where `decision` stands.
        overrides: Whether `decision` stands whatever the code did.
        yields: Whether Slurm wants the allocation back.
        ends_job: Whether the job itself may be ending, which agents take for a preemption.
    """

    rank: int
    text: str
    decision: Decision
    after_failure: Action | None = Action.REQUEUE
    overrides: bool = False
    yields: bool = False
    ends_job: bool = False


def meaning(cause: Cause) -> Meaning:
    """The table of all causes: a new cause is entered here, and nowhere else."""
    # The user's latest intent wins over Slurm's reason. The signal of the time limit itself looks
    # like a preemption to the agents. A trial that the search has stopped is done, whatever else
    # asks it to stop.
    match cause:
        case Cause.PREEMPTION:
            decision = Decision("preempted", "preempted by Slurm", Action.REQUEUE)
            return Meaning(0, "preemption", decision, yields=True)
        case Cause.TIME_LIMIT:
            decision = Decision("time_limit", "the job's time limit was near", Action.REQUEUE)
            return Meaning(1, "time limit", decision, yields=True)
        case Cause.ENDING:
            # A user may have cancelled the job; Slurm itself requeues jobs that it preempts to the
            # end.
            decision = Decision(ENDED, "Slurm ended the job without a known reason", Action.STOP)
            text = "Slurm ends the job without a known reason"
            return Meaning(2, text, decision, Action.STOP, ends_job=True)
        case Cause.PAUSE:
            decision = Decision("paused", "paused by the user", Action.HOLD)
            return Meaning(3, "pause", decision, Action.HOLD)
        case Cause.STOP:
            decision = Decision("completed", "stopped by the search", Action.STOP)
            return Meaning(4, "the search has stopped it", decision, overrides=True)
        case Cause.CANCEL:
            decision = Decision("canceled", "canceled by the user", Action.STOP)
            return Meaning(5, "cancel", decision, after_failure=None)
        case Cause.KILL:
            decision = Decision("killed", "killed by the user", Action.STOP)
            return Meaning(6, "kill", decision, overrides=True, ends_job=True)
        case _:
            assert_never(cause)


def outranks(cause: Cause, known: Cause | None) -> bool:
    """Whether a cause counts in place of the known one."""
    return known is None or meaning(cause).rank > meaning(known).rank


class AttemptResult(msgspec.Struct):
    """How an attempt ended, as far as the runner observed it.

    `exit_code` follows the shell: 128 + N for death by signal N.
    """

    exit_code: int = 0
    cause: Cause | None = None
    acknowledged: bool = False
    invalid_hp: bool = False
    cancel_retries: str | None = None  # the log policy that forbids a restart
    exclude: list[str] = []
    began: bool = False  # a step that never began is not a failure of the code
    refused: bool = False  # Slurm starts no more steps in this job
    controller_silent: bool = False  # srun found no controller that could start the step
    unlaunched: list[str] = []  # nodes that srun did not reach, so that no code has begun
    agent_lost: bool = False  # an agent was gone without a word, and what it ran may live on
    non_retryable: str | None = None  # why no step can begin here
    why: str | None = None  # the failure, where the exit code does not show it
    kind: FailureKind | None = None  # of the failure in `why`, if an agent has recognised it
    unprepared: bool = False  # a node could not begin the code
    failed_node: str | None = None  # the first of several nodes that failed by itself
    got_sigint: bool = False  # SIGINT has come to a node's agent
    oom_kills: int = 0  # processes that the kernel has killed for lack of memory
    seconds: float = 0.0  # how long it lasted
    not_staged: dict[str, str] = {}  # why, by node
    deleted: str | None = None  # what the code wrote into its working directory
    job_is_ending: bool = False
    yield_allocation: bool = False  # Slurm wants the allocation back, whatever becomes of the trial


class EndFacts(msgspec.Struct, frozen=True):
    """The facts about the run that its attempt does not show, from the store and the queue."""

    refusal: str | None = None  # of the hyperparameters, by the code
    new_checkpoint: bool = False  # this run has committed a checkpoint
    # The trial has no checkpoint, and this run reported no step past those of the last run that
    # did.
    stalled: bool = False
    stopped: bool = False  # the search wants no more of this trial
    resting: bool = False  # the search has no more for the trial now, and may promote it later
    non_retryable: str | None = None  # why the next run would fail in the same way
    restarts: int = 0  # those used before this run
    max_restarts: int = 5
    error: str | None = None  # the last line of the exception that ended the run
    failure: Failure | None = None  # an error of the code, met at once, without a step gained
    earlier: Failure | None = None  # the error that made this run a restart
    restart_repeated: bool = False  # the user wants a restart after the same error, too
    pause_reason: str | None = None  # why the experiment is paused, if not by its user
    bad_node: str | None = None  # the node that is to blame, because others work
    store_failed: bool = False  # the store could not be used when the run ended
    ended_by: str | None = None  # Slurm's line about the job's end
    outputs: dict[str, Any] = {}  # what the code left there, for the end record


def decide(result: AttemptResult, facts: EndFacts) -> Decision:
    """The outcome of an attempt."""
    cause = result.cause
    if facts.stopped and outranks(Cause.STOP, cause):
        cause = Cause.STOP
    if cause is not None and meaning(cause).overrides:
        return meaning(cause).decision
    if cause is not None and (result.acknowledged or _cut_short(result, facts)):
        again = cause is Cause.TIME_LIMIT and facts.stalled
        return _failed(result, facts) if again else _stopped(cause, facts)
    if facts.refusal is not None:
        return Decision("invalid_hp", facts.refusal, Action.STOP)
    if result.exit_code == 0 and facts.resting:
        return Decision("out_of_ops", "the search may promote it later", Action.STOP)
    if result.exit_code == 0:
        asked = cause is not None and meaning(cause).yields  # and it may have saved
        more = " after it was asked to stop, without should_preempt()" if asked else ""
        return Decision("completed", f"the code exited with 0{more}{_doubts(result)}", Action.STOP)
    return _failed(result, facts)


def end_record(
    decision: Decision, result: AttemptResult, facts: EndFacts, now: float
) -> dict[str, Any]:
    """The record of the run's end."""
    began = result.began and not result.unprepared
    record = {
        "outcome": decision.outcome,
        "reason": decision.reason,
        "exit_code": result.exit_code,
        "exclude": [*result.exclude, *filter(None, [facts.bad_node])],
        "time": now,
        "cause": None if result.cause is None else str(result.cause),
        "bad_node": facts.bad_node,
        "began": None if began or not result.exit_code else False,
        "failure": None if facts.failure is None else facts.failure.to_dict(),
        "not_staged": result.not_staged or None,
        "deleted": result.deleted,
        "outputs": facts.outputs or None,
    }
    return {name: value for name, value in record.items() if value is not None}


def _doubts(result: AttemptResult) -> str:
    """Name the signs against a success that the exit code claims."""
    count = result.oom_kills
    killed = f"; the kernel killed {count} of its processes for lack of memory" if count else ""
    return f"{'; SIGINT had come before' if result.got_sigint else ''}{killed}"


def _cut_short(result: AttemptResult, facts: EndFacts) -> bool:
    # The code did not acknowledge, but it was ended by the signal that came with the request: that
    # is not its failure. At a time limit it must at least have saved something, or a script
    # that never checkpoints would be chained without end.
    if facts.store_failed and result.exit_code and facts.refusal is None:
        return True  # nor is it that the code could not save while the store was away
    if result.exit_code not in KILLED_BY_SIGNAL:
        return False
    return result.cause is not Cause.TIME_LIMIT or facts.new_checkpoint


_RESTARTED = {
    "requeued": "requeued by its user, an administrator or its own code",
    "node_failed": "a node of its job failed",
    "cancelled": "asked to stop by scancel --signal=TERM",
}


def _stopped(cause: Cause, facts: EndFacts) -> Decision:
    decision = meaning(cause).decision
    reason = decision.reason
    if cause is Cause.PAUSE and facts.pause_reason:
        reason = f"paused: {facts.pause_reason}"
    if cause is Cause.PREEMPTION:
        reason = _RESTARTED.get(facts.ended_by or "", reason)
    return Decision(decision.outcome, reason, decision.action)


def _failed(result: AttemptResult, facts: EndFacts) -> Decision:
    how = _how(result, facts)
    action = Action.RETRY
    if result.cause is not None:
        known = meaning(result.cause)
        if known.after_failure is None:
            reason = f"{known.decision.reason}; {how}"
            return Decision(known.decision.outcome, reason, known.decision.action)
        action = known.after_failure
    if facts.bad_node is not None and result.cancel_retries is None:
        reason = f"{how} on {facts.bad_node}, while other nodes work; the next run goes elsewhere"
        return Decision("restart", reason, Action.REQUEUE)
    if (final := _final_reason(how, result, facts)) is not None:
        return Decision("error", final, Action.STOP)
    if result.unprepared and action is Action.RETRY:
        action = Action.REQUEUE  # here it would fail at once, as often as it may
    restart = f"restart {facts.restarts + 1} of {facts.max_restarts}"
    reason = f"{how}; {'trying once more' if _spares_restart(facts) else restart}"
    return Decision("restart", reason, action)


def _spares_restart(facts: EndFacts) -> bool:
    digest, earlier = (f.digest if f is not None else None for f in (facts.failure, facts.earlier))
    return spares_restart(digest, earlier)


def _final_reason(how: str, result: AttemptResult, facts: EndFacts) -> str | None:
    """Why a failure is the last one; None where a restart may help."""
    if (final := facts.non_retryable or result.non_retryable) is not None:
        return f"{final}; a restart would not help"
    if result.cancel_retries is not None:
        return f"{how}; log policy {result.cancel_retries!r} forbids a restart"
    if facts.failure is not None and facts.failure == facts.earlier and not facts.restart_repeated:
        again = "the last two runs failed with the same error, and a restart would not help"
        return f"{facts.failure.error}; {again} (restart_repeated_failures: true tries it)"
    if facts.restarts >= facts.max_restarts and not _spares_restart(facts):
        return f"{how} after {facts.restarts} of {facts.max_restarts} restarts"
    return None


def _how(result: AttemptResult, facts: EndFacts) -> str:
    if result.why is not None:
        return result.why
    if result.cause is Cause.TIME_LIMIT and facts.stalled:
        return "the code left at the time limit, without a checkpoint and no further than before"
    if result.cause is Cause.TIME_LIMIT and result.exit_code in KILLED_BY_SIGNAL:
        return "the code reached the time limit without saving a checkpoint"
    error = "" if facts.error is None else f"{facts.error}; "
    return f"{error}the code {describe_exit(result.exit_code)}{_doubts(result)}"


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
