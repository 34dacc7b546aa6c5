"""Gathers the facts about a run that has ended, for the decision about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detslurm._base.states import INVALID_HP, RESTART
from detslurm.exec.outcome import AttemptResult, EndFacts

if TYPE_CHECKING:
    from detslurm.exec.end_reasons import EndReasons
    from detslurm.exec.failure import Failure
    from detslurm.exec.run_claim import JobContext
    from detslurm.exec.trial_queue import SearchVerdict
    from detslurm.store import TrialDir, TrialView

# A run that lasted longer failed after some work: what it worked on may have been the cause.
_SHORT_RUN = 60.0


def end_facts(
    job: JobContext,
    trial: TrialDir,
    run: int,
    *,
    views: tuple[TrialView, TrialView],
    result: AttemptResult,
    verdict: SearchVerdict,
    reasons: EndReasons,
) -> EndFacts:
    """The facts about a run; `views` are the trial before and after it, `verdict` the search's."""
    before, after = views
    has_saved = len(after.checkpoints) > len(before.checkpoints)
    outputs: dict[str, Any] = {}
    if job.config.outputs is not None:
        from detslurm.exec.outputs_record import outputs_left  # only here: others pay nothing

        outputs, has_written = outputs_left(trial, run)
        has_saved |= has_written
    failure = None
    if result.cause is None and result.exit_code:
        failure = _failure(trial, run, result, gained=has_saved or after.steps > before.steps)
    return EndFacts(
        refusal=_refusal(after, result),
        new_checkpoint=has_saved,
        stalled=_is_stalled(after),
        stopped=verdict.stop and after.non_retryable is None,
        resting=verdict.rest,
        non_retryable=after.non_retryable,
        restarts=before.restarts,
        max_restarts=job.config.max_restarts,
        error=_error(trial, run, result),
        failure=failure,
        earlier=_earlier_failure(trial, run) if failure is not None else None,
        restart_repeated=job.config.restart_repeated_failures,
        pause_reason=job.intents.facts.desired.pause_reason,
        bad_node=_bad_node(job, after, result, is_own_error=failure is not None),
        store_failed=reasons.store_failed,
        ended_by=reasons.ended_by,
        outputs=outputs,
    )


def _failure(trial: TrialDir, run: int, result: AttemptResult, *, gained: bool) -> Failure | None:
    """The failure that an agent recognised, or the error of the code that ended this run at once
    and gained no step."""
    from detslurm.exec.failure import EXITS, Failure, failure_in  # only here

    if result.kind is not None and result.why is not None:
        return Failure(result.why, result.kind)
    if gained or result.seconds >= _SHORT_RUN or result.exit_code not in EXITS:
        return None
    return failure_in(trial.log_path(run))


def _error(trial: TrialDir, run: int, result: AttemptResult) -> str | None:
    """The exception that ended this run, where nothing else did."""
    if result.cause is not None or not 0 < result.exit_code < 128:
        return None
    from detslurm.exec.failure import error_in  # only here

    return error_in(trial.log_path(run))


def _earlier_failure(trial: TrialDir, run: int) -> Failure | None:
    """That of the run before, if it made this run a restart."""
    from detslurm.exec.failure import Failure

    end = trial.end(run - 1)
    return Failure.from_dict(end.failure) if end and end.outcome == RESTART else None


def _bad_node(
    job: JobContext, after: TrialView, result: AttemptResult, *, is_own_error: bool
) -> str | None:
    """The node that this run failed on before its first report, if the node is to blame."""
    run, nodes = after.runs[-1], job.allocation.nodes
    reported = run.reported_steps or any(c.run == run.number for c in after.checkpoints)
    if reported or after.non_retryable is not None or result.invalid_hp:
        return None
    if result.cause is not None or not result.exit_code:
        return None
    node = nodes[0] if len(nodes) == 1 else result.failed_node
    if node is None or len(job.intents.facts.trial_ids) == 1:
        return None
    from detslurm.exec.bad_nodes import BadNodes  # only here: other runners start without it

    is_to_blame = BadNodes(job.intents, job.cluster).is_to_blame(
        node, after, result.seconds, is_own_error=is_own_error, wait=job.inbox.wait
    )
    return node if is_to_blame else None


def _is_stalled(view: TrialView) -> bool:
    """Whether the newest run has reported steps, none past those of the last run that did, and the
    trial has no checkpoint. Code that reports nothing may go on from files of its own."""
    *earlier, newest = [run.reported_steps for run in view.runs]
    last = next((steps for steps in reversed(earlier) if steps), 0)
    return 0 < newest <= last and all(c.kind is not None for c in view.checkpoints)


def _refusal(view: TrialView, result: AttemptResult) -> str | None:
    if view.early_exit != INVALID_HP and not result.invalid_hp:
        return None
    reason = f": {view.early_exit_text}" if view.early_exit_text else " by the code"
    return f"its hyperparameters were declared invalid{reason}"
