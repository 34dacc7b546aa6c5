"""One trial in this allocation: claim the run, start its step, record how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from detslurm._base import startup
from detslurm._base.states import INVALID_HP, RESTART, outcome_words
from detslurm.config.run_config import RunConfig
from detslurm.config.secret_values import masked_sample
from detslurm.exec.attempt import REFRESH_SECONDS, Attempt, AttemptResult, Limits
from detslurm.exec.hardware import hardware
from detslurm.exec.idle_guard import PAUSE, IdleGuard, RecordsNews
from detslurm.exec.intents import Intents
from detslurm.exec.outcome import Action, AttemptFacts, Cause, Decision, decide
from detslurm.exec.signals import SignalInbox
from detslurm.exec.text_log import TextLog, log_store_error, with_long_retries
from detslurm.exec.trial_queue import Task, TrialQueue
from detslurm.exec.usage_record import UsageRecord
from detslurm.slurm import Allocation, SlurmError
from detslurm.slurm.allocation import SIGNAL_EARLY
from detslurm.store import StoreError, TrialDir, TrialView, fold_trial
from detslurm.store.records import Idle, Intent, Record
from detslurm.store.run_records import StartRecord
from detslurm.store.trial_fold import FoldContext

if TYPE_CHECKING:
    from detslurm.exec.budget import Meter
    from detslurm.exec.failure import Failure
    from detslurm.slurm import Cluster
    from detslurm.store.run_records import Continued

_DEFAULT_PREEMPTION_TIMEOUT = 3600.0
# Seconds before the next try where Slurm refused to begin a step.
_STEP_PAUSE = 2.0
# So long a step is tried again while Slurm's controller does not answer: it may be restarted, or
# busy for a while. The allocation would be lost otherwise. Or while a node does not: Slurm takes
# some minutes (SlurmdTimeout) to see that it is dead, and then requeues the job.
_CONTROLLER_TIMEOUT = 1800.0
# Seconds to end what a run has left; a job that is being ended has not much more.
_CLEARING = 20.0
# A run that lasted longer failed after some work: what it worked on may have been the cause.
_SHORT_RUN = 60.0
# Slurm's reports of the job's end. After a requeue or a node failure it restarts the job itself.
_ENDINGS = {
    "cancelled": Cause.KILL,
    "time_limit": Cause.TIME_LIMIT,
    "preempted": Cause.PREEMPTION,
    "requeued": Cause.PREEMPTION,
    "node_failed": Cause.PREEMPTION,
}
# Slurm ends a job within a minute after its time limit; clocks of nodes differ by a few seconds.
_LIMIT_SLACK, _EARLY = 60.0, 5.0
_YIELDING = (Cause.PREEMPTION, Cause.TIME_LIMIT)


class Execution:
    """A task in the hands of this job, run by run."""

    def __init__(
        self,
        task: Task,
        *,
        trial_queue: TrialQueue,
        intents: Intents,
        config: RunConfig,
        allocation: Allocation,
        cluster: Callable[[], Cluster],
        inbox: SignalInbox,
        end_reason: Callable[[], str | None],
    ) -> None:
        self.task = task
        self._trial_queue, self._intents, self._config = trial_queue, intents, config
        self._allocation, self._cluster, self._inbox = allocation, cluster, inbox
        self._read_end_reason = end_reason
        self._trial: TrialDir = intents.experiment.trial(task.trial_id)
        self._run = 0
        self._meter: Meter | None = None
        self._ended_by: str | None = None
        self._store_failed = False  # when it was used last, or while a run's end was judged
        self.excluded: list[str] = []

    def view(self) -> TrialView:
        """The trial as its files show it now."""
        return with_long_retries(self._fold)

    def _fold(self) -> TrialView:
        # First the facts: before a deletion there is a newer checkpoint, which is then read.
        self._intents.refresh()
        return fold_trial(self._trial, FoldContext(checkpoints=self._intents.facts.checkpoints))

    @property
    def superseded(self) -> bool:
        """Whether another job goes on with this trial, so that this job is a zombie."""
        return bool(self._run) and with_long_retries(lambda: self._trial.superseded(self._run))

    def run(self) -> tuple[Decision, AttemptResult]:
        """Run the trial once. Raises `TrialEnded` or `RunTaken` where that is not ours to do."""
        before = self.view()
        start = self._start(before)
        self._run = number = start.run
        log = with_long_retries(lambda: TextLog(self._trial.log_path(number)))
        where = f"job {self._allocation.ref} on {self._hosts()}"
        log.add_message(f"run {number} of trial {self.task.trial_id} in {where}")
        begun = time.monotonic()
        self._usage = self._new_usage(number)
        self._begin_metering()
        try:
            result = self._run_step(number, log)
            result.seconds = time.monotonic() - begun
            result.was_short = result.seconds < _SHORT_RUN
            decision = with_long_retries(lambda: self._decide(before, result))
            log.add_message(
                f"run {number} ended: {outcome_words(decision.outcome)}: {decision.reason}"
            )
        finally:
            log.close()
        if self._meter is not None:
            with_long_retries(self._meter.end)
        # Only now, with the log closed: a reader that follows it stops when there is an end record.
        with_long_retries(
            lambda: self._trial.write_end(
                number, {**_end_record(number, decision, result), **self._usage.for_end()}
            )
        )
        self._usage.discard()
        # A killed agent leaves its processes; the agent of a next run would end them, but there is
        # none: the allocation goes to another trial, or to another job on the same node.
        if result.agent_lost and decision.action is Action.STOP:
            self._clear_nodes(number)
        ends = (run.end for run in with_long_retries(self._trial.runs))
        self.excluded = [node for end in ends if end is not None for node in end.exclude]
        return decision, result

    def _hosts(self) -> str:
        if self._allocation.node_count == 1:
            return os.uname().nodename
        from detslurm.slurm.hostlist import compress_hostlist  # only here: others start without it

        return compress_hostlist(self._allocation.nodes)

    def _new_usage(self, number: int) -> UsageRecord:
        slots = self._intents.facts.created.slots or 0
        return UsageRecord(self._trial, number, nodes=self._allocation.node_count, slots=slots)

    def _clear_nodes(self, number: int) -> None:
        """End what the run has left, where no agent of a next one comes to do it."""
        place = [str(self._intents.experiment.path), str(self._trial.id), str(number)]
        argv = [sys.executable, "-P", "-m", "detslurm.exec.orphans", *place]
        with contextlib.suppress(SlurmError, OSError, subprocess.TimeoutExpired):
            step = self._allocation.step_command(argv)
            subprocess.run(step, stdin=subprocess.DEVNULL, timeout=_CLEARING, check=False)

    def _start(self, view: TrialView) -> StartRecord:
        """Make the next run ours, which fences all earlier ones."""
        # Of a trial that is taken for lost a claim protects nothing: see store.gc.
        with_long_retries(lambda: self._intents.mark_found(self.task.trial_id))
        while True:
            start = with_long_retries(partial(self._claim, view))
            # The checkpoint may have been deleted before we claimed it: see store.gc.
            # A look that fails is tried again by itself: with the claim it would be a second run.
            with_long_retries(self._intents.refresh)
            latest = view.latest_checkpoint
            if latest is None or latest.uuid not in self._intents.facts.checkpoints.deleted:
                return start
            view = self.view()

    def _claim(self, view: TrialView) -> StartRecord:
        allocation, plan, token = self._allocation, self.task.plan, self.task.fencing_token
        continued = self._continued()
        return self._trial.open_run(
            {
                "trial": self._trial.id,
                "experiment": self._trial.experiment_id,
                "index": self.task.index,
                "request_id": plan.request_id,
                "hparams": masked_sample(plan.hparams, self._config.hyperparameters),
                "seed": plan.seed if continued is None else continued.seed,
                "job": allocation.record(),
                "host": os.uname().nodename,
                "time": time.time(),
                "resume": self._resume(view, continued),
                "hardware": hardware(),
                **self._environment(),
                **({} if continued is None else {"continued": continued.as_claimed()}),
                **({} if token is None else {"fencing_token": token}),
            }
        )

    def _environment(self) -> dict[str, Any]:
        """The environment that the nodes stage; their agents don't read the experiment's facts."""
        found, root = self._intents.facts.created.environment, self._intents.experiment.store.path
        return {} if found is None else {"environment": msgspec.to_builtins(found.in_store(root))}

    def _continued(self) -> Continued | None:
        """Where the trial begins if it continues a trial of another experiment."""
        if self._intents.facts.created.origin != "continue":
            return None
        from detslurm.store.history import read_continued  # only here: others start without it

        return read_continued(self._trial)

    def _resume(self, view: TrialView, continued: Continued | None) -> dict[str, Any] | None:
        latest = view.latest_checkpoint or continued
        if latest is not None:
            return {"uuid": latest.uuid, "steps": latest.steps}
        if self.task.source is not None:
            return {"uuid": self.task.source, "steps": self.task.source_steps}
        # A warm start loads another trial's weights and starts counting from 0.
        source = self._configured_source()
        return {"uuid": source, "steps": 0} if source else None

    def _configured_source(self) -> str | None:
        named = self._config.searcher.source_checkpoint_uuid
        return self._intents.facts.created.source_checkpoint or named

    def _decide(self, before: TrialView, result: AttemptResult) -> Decision:
        try:
            decision = decide(self._facts(before, result))
        except StoreError:
            self._store_failed = True
            raise
        self._trial_queue.on_run_ending(self.task, decision)
        return decision

    def _run_step(self, number: int, log: TextLog) -> AttemptResult:
        """The attempt that began, or why none could: a silent controller is waited for."""
        until, pause = time.monotonic() + _CONTROLLER_TIMEOUT, _STEP_PAUSE
        while True:
            try:
                with self._step_server():
                    result = self._attempt(number, log)
            except SlurmError as err:  # this allocation is of no use
                log.add_message(str(err))
                return AttemptResult(exit_code=1, non_retryable=err.message)
            began = result.began and not result.unlaunched  # it waits for all of its nodes
            if began or not result.exit_code:
                self._confirm_cause(result)
                return result
            if result.cause is not None:
                result.acknowledged = True  # code that never ran has nothing to save
                self._confirm_cause(result)
                return result
            silent = ", ".join(result.unlaunched) or ("Slurm" if result.controller_silent else "")
            if not silent or time.monotonic() > until:
                self._explain_refusal(result, log)
                return result
            log.add_message(f"{silent} does not answer, so that the step can't begin: trying again")
            # Waits on the inbox, so that a cancelled job does not sleep through its grace.
            self._inbox.wait(pause)
            pause = min(2 * pause, 60.0)

    def _attempt(self, number: int, log: TextLog) -> AttemptResult:
        experiment = self._intents.experiment
        agent = startup.command("detslurm.exec.agent")
        argv = [*agent, str(experiment.path), str(self._trial.id), str(number)]
        timeout = self._config.preemption_timeout or _DEFAULT_PREEMPTION_TIMEOUT
        return Attempt(
            self._allocation.step_command(argv, mpi=self._config.slurm.mpi),
            self._allocation.nodes,
            inbox=self._inbox,
            log=log,
            stop_cause=self.stop_cause,
            signal_cause=self._signal_cause,
            end_reason=self._sigterm_cause,
            limits=Limits(timeout, float(self._intents.facts.created.kill_wait)),
            on_usage=self._usage.add,
            guard=self._idle_guard(number),
            on_idle=self._on_idle,
            refresh_seconds=self._refresh_seconds,
        ).run()

    def _refresh_seconds(self) -> float:
        own = REFRESH_SECONDS if self._meter is None else self._meter.seconds_to_look()
        return min(own, REFRESH_SECONDS)

    def _begin_metering(self) -> None:
        """Count what the run uses, where the experiment has a budget."""
        if self._intents.facts.budget is None:
            return
        if self._meter is None:
            from detslurm.exec.budget import Meter  # only here: other runners start without it

            self._meter = Meter(self._intents, self._trial.id, self._cluster())
        self._meter.begin(self._run)

    def _charge(self) -> None:
        if self._meter is None and self._run:
            self._begin_metering()  # it has got a budget while it runs
        if self._meter is not None:
            self._meter.poll()

    def _idle_guard(self, number: int) -> IdleGuard:
        return IdleGuard.configured(
            self._config.slurm.idle_guard,
            nodes=self._allocation.nodes,
            slots=self._intents.facts.created.slots or 0,
            has_news=RecordsNews(str(self._trial.records_path(number))),
        )

    def _on_idle(self, action: str, reason: str | None) -> bool:
        """Let readers see that the run is idle, or is not any more; or pause the experiment.
        Whether that is recorded."""
        fact: Record = Idle(trial=self._trial.id, run=self._run, reason=reason)
        if action == PAUSE:
            fact = Intent(intent="pause", reason=f"trial {self._trial.id}: {reason}")
        try:
            self._intents.experiment.append(fact, self._intents.facts.count)
        except StoreError as error:
            log_store_error(error)
            return False
        return True

    def _step_server(self) -> contextlib.AbstractContextManager[None]:
        """Starts the steps that launchers ask for, where a run has several nodes."""
        if self._allocation.node_count == 1:
            return contextlib.nullcontext()
        from detslurm.exec.step_server import serve_steps  # only here: other runners start faster

        return serve_steps(self._step_environment)

    def _step_environment(self, launchers: Mapping[str, str]) -> dict[str, str]:
        from detslurm.exec.containers import starting_environment  # only here: others pay nothing

        inside = bool(self._config.slurm.container_prefix)
        return starting_environment(self._config, launchers) if inside else dict(launchers)

    def _explain_refusal(self, result: AttemptResult, log: TextLog) -> None:
        """Why no step could begin: usually the job is being ended, and no signal has come yet."""
        # The agents of a preempted job get their SIGTERM also while they start.
        refused = result.refused or result.exit_code == 128 + signal.SIGTERM
        # Exit codes don't distinguish a preemption from a cancelled job: the queue does.
        ending = self._job_is_ending()
        if not refused and not ending:
            result.why = "the step could not begin"
            if result.unlaunched:
                result.why += f": {', '.join(result.unlaunched)} did not answer"
                result.unprepared = True
            log.add_message(result.why)
            self._inbox.wait(_STEP_PAUSE)
            return
        log.add_message("the step could not begin: the job is being ended")
        result.acknowledged = True
        if ending:
            self._await_end_reason(result)
        else:  # the grace of a preemption, in which the runner gets no signal
            result.cause, result.yield_allocation = Cause.PREEMPTION, True

    def _confirm_cause(self, result: AttemptResult) -> None:
        """Whether it was a preemption of the step alone, or the signal of a job's end.

        Nodes do not learn of an end at the same moment: the code may have exited before this
        process was signalled, and a job that a user has cancelled must not be requeued.
        """
        if result.job_is_ending:
            # slurmstepd writes its line about the end and sends SIGTERM at about the same time, so
            # the line may have been missing when the signal was handled: it is read again now.
            if result.cause is Cause.ENDING:
                result.cause = self._last_reason()
                result.yield_allocation = result.cause in _YIELDING
        elif result.cause is Cause.PREEMPTION and self._job_is_ending():
            self._await_end_reason(result)
        elif result.agent_lost and result.cause is None and self._job_is_ending():
            # As when Slurm gave its node up: srun ends before this process is signalled.
            result.exit_code = 128 + signal.SIGKILL
            self._await_end_reason(result)

    def _await_end_reason(self, result: AttemptResult) -> None:
        """Wait for the SIGTERM that is on its way to this process, and read why it came."""
        until = time.monotonic() + float(self._intents.facts.created.kill_wait)
        while signal.SIGTERM not in self._inbox.take() and time.monotonic() < until:
            self._inbox.wait(max(0.0, until - time.monotonic()))
        # Also when no signal came in time: without a known reason the cause is ENDING, and a job
        # that ends for an unknown reason is not requeued.
        result.job_is_ending, result.cause = True, self._last_reason()
        result.yield_allocation = result.cause in _YIELDING

    def _job_is_ending(self) -> bool:
        """Whether the queue shows it so: in the grace of a preemption it shows a running job."""
        try:
            own = self._cluster().query([self._allocation.ref]).get(self._allocation.ref)
        except SlurmError:
            return False  # unknown: what the nodes have reported stands
        if own is None or own.ending:
            return own is not None
        # A job that was requeued at once, as after a failure of its node, may run elsewhere by now.
        is_slurm = self._allocation.cluster == "slurm"
        return is_slurm and not set(own.nodes) <= set(self._allocation.nodes)

    def _facts(self, before: TrialView, result: AttemptResult) -> AttemptFacts:
        after = self._fold()  # the caller retries
        verdict = self._trial_queue.verdict(self.task, after)
        stopped = verdict.stop and result.cause not in (Cause.KILL, Cause.CANCEL)
        stopped = stopped and after.non_retryable is None
        result.failure = self._failure(before, after, result)
        result.bad_node = self._bad_node(after, result)
        return AttemptFacts(
            exit_code=result.exit_code,
            cause=Cause.STOP if stopped else result.cause,
            acknowledged=result.acknowledged,
            invalid_hp=_refusal(after, result),
            new_checkpoint=len(after.checkpoints) > len(before.checkpoints),
            stalled=_is_stalled(after),
            cancel_retries=result.cancel_retries,
            non_retryable=after.non_retryable or result.non_retryable,
            restarts=before.restarts,
            max_restarts=self._config.max_restarts,
            resting=verdict.rest,
            why=result.why,
            error=self._error(result),
            failure=result.failure,
            earlier=self._earlier_failure() if result.failure is not None else None,
            restart_repeated=self._config.restart_repeated_failures,
            pause_reason=self._intents.facts.desired.pause_reason,
            unprepared=result.unprepared,
            bad_node=result.bad_node,
            got_sigint=result.got_sigint,
            oom_kills=result.oom_kills,
            store_failed=self._store_failed,
            ended_by=self._ended_by,
        )

    def _failure(
        self, before: TrialView, after: TrialView, result: AttemptResult
    ) -> Failure | None:
        """The hook's failure, or the error of the code that ended this run at once and gained no
        step."""
        if result.cause is not None or not result.exit_code:
            return None
        from detslurm.exec.failure import EXITS, failure_before_code, failure_in  # only here

        if found := failure_before_code(result.why):
            return found
        gained = after.steps > before.steps or len(after.checkpoints) > len(before.checkpoints)
        if gained or not result.was_short or result.exit_code not in EXITS:
            return None
        return failure_in(self._trial.log_path(self._run))

    def _error(self, result: AttemptResult) -> str | None:
        """The exception that ended this run, where nothing else did."""
        if result.cause is not None or not 0 < result.exit_code < 128:
            return None
        from detslurm.exec.failure import error_in  # only here

        return error_in(self._trial.log_path(self._run))

    def _bad_node(self, after: TrialView, result: AttemptResult) -> str | None:
        """The node that this run failed on before its first report, if the node is to blame."""
        run = after.runs[-1]
        reported = run.reported_steps or any(c.run == run.number for c in after.checkpoints)
        if reported or after.non_retryable is not None or result.invalid_hp:
            return None
        if result.cause is not None or not result.exit_code:
            return None
        nodes = self._allocation.nodes
        node = nodes[0] if len(nodes) == 1 else result.failed_node
        if node is None or len(self._intents.facts.trial_ids) == 1:
            return None
        from detslurm.exec.bad_nodes import BadNodes  # only here: other runners start without it

        found = BadNodes(self._intents, self._cluster)
        is_own_error = result.failure is not None
        blamed = found.is_to_blame(
            node, after, result.seconds, is_own_error=is_own_error, wait=self._inbox.wait
        )
        return node if blamed else None

    def _earlier_failure(self) -> Failure | None:
        """That of the run before, if it made this run a restart."""
        from detslurm.exec.failure import Failure

        end = self._trial.end(self._run - 1)
        return Failure.from_dict(end.failure) if end and end.outcome == RESTART else None

    def stop_cause(self) -> Cause | None:
        """Why the trial should not run now, or None; as last known while the store is silent."""
        try:
            if self._run and self._trial.superseded(self._run):
                return Cause.KILL
            self._intents.refresh()
            self._intents.mark_found(self.task.trial_id)
            self._charge()
            self._store_failed = False
        except StoreError as error:
            self._store_failed = True
            log_store_error(error)
        return self._intents.cause_for(self.task.trial_id)

    def _sigterm_cause(self) -> Cause | None:
        """As `_end_reason`; None where the queue shows that the job goes on.

        slurmstepd prints the same line for `scancel --signal=TERM --batch` as for a plain scancel.
        """
        cause = self._end_reason()
        if cause is not Cause.KILL or self._ended_by != "cancelled":
            return cause
        with contextlib.suppress(SlurmError):
            own = self._cluster().query([self._allocation.ref]).get(self._allocation.ref)
            if own is not None and own.state == "RUNNING":
                return None
        return cause

    def _end_reason(self) -> Cause:
        """Why the whole job is being ended, by Slurm's line in its output."""
        intent, self._ended_by = self.stop_cause(), None
        if intent is not None:
            return intent
        self._ended_by = self._read_end_reason()
        return _ENDINGS.get(self._ended_by or "", Cause.ENDING)

    def _last_reason(self) -> Cause:
        """The same once nothing more is to be expected; a line that is missing at the time limit is
        taken for that of the limit: slurmstepd can't write it where the node's memory is full."""
        cause, left = self._end_reason(), self._allocation.seconds_left()
        is_over = left is not None and -_LIMIT_SLACK < left < _EARLY
        return Cause.TIME_LIMIT if cause is Cause.ENDING and is_over else cause

    def _signal_cause(self) -> Cause:
        """Time limit or preemption: SIGUSR1 means both on sites with preempt_send_user_signal."""
        job = None
        with contextlib.suppress(SlurmError):
            job = self._cluster().query([self._allocation.ref]).get(self._allocation.ref)
        # Without an answer the limit that the job began with; where that is unknown too, the cause
        # under which code that never saves is not started again without end.
        left = job.time_left if job is not None else self._allocation.seconds_left() or 0
        return Cause.TIME_LIMIT if is_limit_near(left, self._intents) else Cause.PREEMPTION


def is_limit_near(seconds_left: float | None, intents: Intents) -> bool:
    """Whether Slurm's signal before the time limit is due or has come."""
    lead = intents.facts.created.signal_lead + SIGNAL_EARLY
    return seconds_left is not None and seconds_left <= lead


def _is_stalled(view: TrialView) -> bool:
    """Whether the newest run has reported steps, none past those of the last run that did, and the
    trial has no checkpoint. Code that reports nothing may go on from files of its own."""
    *earlier, newest = [run.reported_steps for run in view.runs]
    last = next((steps for steps in reversed(earlier) if steps), 0)
    return 0 < newest <= last and not view.checkpoints


def _refusal(view: TrialView, result: AttemptResult) -> str | None:
    if view.early_exit != INVALID_HP and not result.invalid_hp:
        return None
    reason = f": {view.early_exit_text}" if view.early_exit_text else " by the code"
    return f"its hyperparameters were declared invalid{reason}"


def _end_record(number: int, decision: Decision, result: AttemptResult) -> dict[str, Any]:
    failure, bad_node = result.failure, result.bad_node
    exclude = [*result.exclude, *([bad_node] if bad_node else [])]
    began = result.began and not result.unprepared
    return {
        "type": "end",
        "run": number,
        "outcome": decision.outcome,
        "reason": decision.reason,
        "exit_code": result.exit_code,
        "exclude": exclude,
        "time": time.time(),
        **({} if result.cause is None else {"cause": str(result.cause)}),
        **({} if bad_node is None else {"bad_node": bad_node}),
        **({} if began or not result.exit_code else {"began": False}),
        **({} if failure is None else {"failure": failure.to_dict()}),
        **({"not_staged": result.not_staged} if result.not_staged else {}),
        **({} if result.deleted is None else {"deleted": result.deleted}),
    }
