"""One trial in this allocation: claim the run, start its step, record how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detslurm._base.states import outcome_words
from detslurm.exec.attempt import Attempt
from detslurm.exec.attempt_state import PAUSE, Limits
from detslurm.exec.end_reasons import EndReasons
from detslurm.exec.environment import is_contained
from detslurm.exec.outcome import (
    Action,
    AttemptResult,
    Cause,
    Decision,
    EndFacts,
    decide,
    end_record,
)
from detslurm.exec.run_claim import JobContext, claim_run
from detslurm.exec.text_log import TextLog, log_store_error, retried, with_long_retries
from detslurm.exec.trial_queue import QueuedTrial, TrialQueue
from detslurm.slurm import SlurmError
from detslurm.store import StoreError, TrialDir, TrialView, fold_trial
from detslurm.store.records import Idle, Intent, Record
from detslurm.store.run_records import StartRecord
from detslurm.store.trial_fold import FoldContext

if TYPE_CHECKING:
    from detslurm.exec.idle_guard import IdleGuard
    from detslurm.exec.usage_record import UsageRecord

_DEFAULT_PREEMPTION_TIMEOUT = 3600.0
# Seconds before the next try where Slurm refused to begin a step.
_STEP_PAUSE = 2.0
# So long a step is tried again while Slurm's controller does not answer: it may be restarted, or
# busy for a while. The allocation would be lost otherwise. Or while a node does not: Slurm takes
# some minutes (SlurmdTimeout) to see that it is dead, and then requeues the job.
_CONTROLLER_TIMEOUT = 1800.0
# Seconds to end what a run has left; a job that is being ended has not much more.
_CLEARING = 20.0


class Execution:
    """A task in the hands of this job, run by run."""

    def __init__(self, task: QueuedTrial, trial_queue: TrialQueue, job: JobContext) -> None:
        self.task = task
        self._trial_queue, self._job = trial_queue, job
        self._trial: TrialDir = job.intents.experiment.trial(task.trial_id)
        self._reasons = EndReasons(job, self._trial)
        self._run, self._begun = 0, 0.0
        self._usage: UsageRecord | None = None
        self.excluded: list[str] = []

    @retried
    def view(self) -> TrialView:
        """The trial as its files show it now."""
        return self._fold()

    def _fold(self) -> TrialView:
        # First the facts: before a deletion there is a newer checkpoint, which is then read.
        self._job.intents.refresh()
        return fold_trial(self._trial, FoldContext(checkpoints=self._job.intents.facts.checkpoints))

    @retried
    def is_superseded(self) -> bool:
        """Whether another job goes on with this trial, so that this job is a zombie."""
        return bool(self._run) and self._trial.superseded(self._run)

    def stop_cause(self) -> Cause | None:
        """Why the trial should not run now, or None."""
        return self._reasons.stop_cause()

    def run(self) -> tuple[Decision, AttemptResult]:
        """Run the trial once. Raises `TrialEnded` or `RunTaken` where that is not ours to do."""
        before = self.view()
        start = self._start(before)
        self._run = number = start.run
        log = TextLog(self._trial.log_path(number))
        where = f"job {self._job.allocation.ref} on {self._hosts()}"
        resumed = f", from step {start.resumed.steps}" if start.resumed.uuid else ""
        log.add_message(f"run {number} of trial {self.task.trial_id} in {where}{resumed}")
        self._begun, self._usage = time.monotonic(), None
        self._reasons.begin(number)
        try:
            result = self._run_step(log)
            result.seconds = time.monotonic() - self._begun
            decision, facts = self._decide(before, result)
            words, reason = outcome_words(decision.outcome) or "", decision.reason
            ending = reason if reason.startswith(words) else f"{words}: {reason}"
            log.add_message(f"run {number} ended: {ending}")
        finally:
            log.close()
        self._reasons.end()
        # Only now, with the log closed: a reader that follows it stops when there is an end record.
        self._write_end(decision, result, facts)
        self._job.notices().look(self._trial, self._run)
        # A killed agent leaves its processes; the agent of a next run would end them, but there is
        # none: the allocation goes to another trial, or to another job on the same node.
        if result.agent_lost and decision.action is Action.STOP:
            self._clear_nodes()
        return decision, result

    def _hosts(self) -> str:
        if self._job.allocation.node_count == 1:
            return os.uname().nodename
        from detslurm.slurm.hostlist import compress_hostlist  # only here: others start without it

        return compress_hostlist(self._job.allocation.nodes)

    def _clear_nodes(self) -> None:
        """End what the run has left, where no agent of a next one comes to do it."""
        place = [str(self._job.intents.experiment.path), str(self._trial.id), str(self._run)]
        argv = [sys.executable, "-P", "-m", "detslurm.exec.orphans", *place]
        with contextlib.suppress(SlurmError, OSError, subprocess.TimeoutExpired):
            step = self._job.allocation.step_command(argv)
            subprocess.run(step, stdin=subprocess.DEVNULL, timeout=_CLEARING, check=False)

    # -- the store -------------------------------------------------------------------------------

    def _start(self, view: TrialView) -> StartRecord:
        """Make the next run ours, which fences all earlier ones."""
        # Of a trial that is taken for lost a claim protects nothing: see store.gc.
        with_long_retries(lambda: self._job.intents.mark_found(self.task.trial_id))
        while True:
            start = self._claim(view)
            # The checkpoint may have been deleted before we claimed it: see store.gc.
            # A look that fails is tried again by itself: with the claim it would be a second run.
            with_long_retries(self._job.intents.refresh)
            latest = view.latest_checkpoint
            if latest is None or latest.uuid not in self._job.intents.facts.checkpoints.deleted:
                return start
            view = self.view()

    @retried
    def _claim(self, view: TrialView) -> StartRecord:
        return claim_run(self._job, self._trial, self.task, view)

    @retried
    def _decide(self, before: TrialView, result: AttemptResult) -> tuple[Decision, EndFacts]:
        from detslurm.exec.end_facts import end_facts  # only here: the start is faster

        try:
            after = self._fold()
            facts = end_facts(
                self._job,
                self._trial,
                self._run,
                views=(before, after),
                result=result,
                verdict=self._trial_queue.verdict(self.task, after),
                reasons=self._reasons,
            )
        except StoreError:
            self._reasons.store_failed = True
            raise
        decision = decide(result, facts)
        self._trial_queue.on_run_ending(self.task, decision)
        return decision, facts

    @retried
    def _write_end(self, decision: Decision, result: AttemptResult, facts: EndFacts) -> None:
        usage = {} if self._usage is None else self._usage.for_end()
        record = end_record(decision, result, facts, time.time())
        self._trial.write_end(self._run, {**record, **usage})
        if self._usage is not None:
            self._usage.discard()
        ends = (run.end for run in self._trial.runs())
        self.excluded = [node for end in ends if end is not None for node in end.exclude]

    # -- the step --------------------------------------------------------------------------------

    def _run_step(self, log: TextLog) -> AttemptResult:
        """The attempt that began, or why none could: a silent controller is waited for."""
        until, pause = time.monotonic() + _CONTROLLER_TIMEOUT, _STEP_PAUSE
        while True:
            try:
                with self._step_server():
                    result = self._attempt(log)
            except SlurmError as err:  # this allocation is of no use
                log.add_message(str(err))
                return AttemptResult(exit_code=1, non_retryable=err.message)
            began = result.began and not result.unlaunched  # it waits for all of its nodes
            if began or not result.exit_code or result.cause is not None:
                # Code that never ran has nothing to save.
                result.acknowledged |= not began and result.exit_code != 0
                self._reasons.confirm(result)
                return result
            silent = ", ".join(result.unlaunched) or ("Slurm" if result.controller_silent else "")
            if not silent or time.monotonic() > until:
                self._explain_refusal(result, log)
                return result
            log.add_message(f"{silent} does not answer, so that the step can't begin: trying again")
            # Waits on the inbox, so that a cancelled job does not sleep through its grace.
            self._job.inbox.wait(pause)
            pause = min(2 * pause, 60.0)

    def _attempt(self, log: TextLog) -> AttemptResult:
        job = self._job
        timeout = job.config.preemption_timeout or _DEFAULT_PREEMPTION_TIMEOUT
        step = job.steps.begin(self._trial.id, self._run)
        attempt = Attempt(
            step,
            job.allocation.nodes,
            inbox=job.inbox,
            log=log,
            reasons=self._reasons,
            answers=job.config.slurm.warm_start,
            limits=Limits(timeout, float(job.intents.facts.created.kill_wait)),
            on_usage=self._add_usage,
            make_guard=self._make_guard,
            on_idle=self._on_idle,
            on_policy=self._on_policy,
        )
        try:
            return attempt.run()
        finally:
            job.steps.leave(step, is_free=attempt.is_free)

    def _add_usage(self, sample: Mapping[str, Any]) -> None:
        if self._usage is None:
            from detslurm.exec.usage_record import UsageRecord  # only here: the code runs by now

            slots = self._job.intents.facts.created.slots or 0
            nodes = self._job.allocation.node_count
            self._usage = UsageRecord(
                self._trial, self._run, begun=self._begun, nodes=nodes, slots=slots
            )
        self._usage.add(sample)
        self._job.notices().look(self._trial, self._run)

    def _on_policy(self, name: str, node: str) -> None:
        self._job.notices().on_policy(self._trial, self._run, name, node)

    def _make_guard(self) -> IdleGuard:
        from detslurm.exec.idle_guard import IdleGuard, RecordsNews  # only here: the code runs

        config = self._job.config.slurm.idle_guard
        return IdleGuard(
            60.0 * config.minutes,
            config.action,
            nodes=self._job.allocation.nodes,
            slots=self._job.intents.facts.created.slots or 0,
            has_news=RecordsNews(str(self._trial.records_path(self._run))),
        )

    def _on_idle(self, action: str, reason: str | None) -> bool:
        """Let readers see that the run is idle, or is not any more; or pause the experiment.
        Whether that is recorded."""
        fact: Record = Idle(trial=self._trial.id, run=self._run, reason=reason)
        if action == PAUSE:
            fact = Intent(intent="pause", reason=f"trial {self._trial.id}: {reason}")
        try:
            number = self._job.intents.experiment.append(fact, self._job.intents.facts.count)
        except StoreError as error:
            log_store_error(error)
            return False
        if isinstance(fact, Intent):
            self._job.notices().on_pause(number, str(fact.reason))
        return True

    def _step_server(self) -> contextlib.AbstractContextManager[None]:
        """Starts the steps that launchers ask for, where a run has several nodes."""
        if self._job.allocation.node_count == 1:
            return contextlib.nullcontext()
        from detslurm.exec.step_server import serve_steps  # only here: other runners start faster

        return serve_steps(self._step_environment)

    def _step_environment(self, launchers: Mapping[str, str]) -> dict[str, str]:
        from detslurm.exec.containers import starting_environment  # only here: others pay nothing

        inside = is_contained(self._job.config, self._job.allocation.slot_ids)
        return starting_environment(launchers) if inside else dict(launchers)

    def _explain_refusal(self, result: AttemptResult, log: TextLog) -> None:
        """Why no step could begin: usually the job is being ended, and no signal has come yet."""
        # The agents of a preempted job get their SIGTERM also while they start.
        refused = result.refused or result.exit_code == 128 + signal.SIGTERM
        # Exit codes don't distinguish a preemption from a cancelled job: the queue does.
        ending = self._reasons.is_job_ending()
        if not refused and not ending:
            result.why = "the step could not begin"
            if result.unlaunched:
                result.why += f": {', '.join(result.unlaunched)} did not answer"
                result.unprepared = True
            log.add_message(result.why)
            self._job.inbox.wait(_STEP_PAUSE)
            return
        log.add_message("the step could not begin: the job is being ended")
        result.acknowledged = True
        if ending:
            self._reasons.await_signal(result)
        else:  # the grace of a preemption, in which the runner gets no signal
            result.cause, result.yield_allocation = Cause.PREEMPTION, True
