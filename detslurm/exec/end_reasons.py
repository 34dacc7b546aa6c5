"""Finds out why a run has to end: the user's intents, the budget, the queue, Slurm's own line."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

from detslurm.exec.attempt_state import REFRESH_SECONDS
from detslurm.exec.outcome import AttemptResult, Cause, meaning
from detslurm.exec.run_claim import JobContext
from detslurm.exec.text_log import log_store_error, with_long_retries
from detslurm.slurm import SlurmError
from detslurm.store import StoreError, TrialDir

if TYPE_CHECKING:
    from detslurm.exec.budget import Meter

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


class EndReasons:
    """The reasons for the end of a trial's runs in this job."""

    def __init__(self, job: JobContext, trial: TrialDir) -> None:
        self._job, self._trial = job, trial
        self._run = 0
        self._meter: Meter | None = None
        self.ended_by: str | None = None  # by Slurm's line
        self.store_failed = False  # when it was used last, or while a run's end was judged

    # -- the budget ------------------------------------------------------------------------------

    def begin(self, run: int) -> None:
        """A run begins, whose use counts where the experiment has a budget."""
        self._run = run
        if self._job.intents.facts.budget is None:
            return
        if self._meter is None:
            from detslurm.exec.budget import Meter  # only here: other runners start without it

            self._meter = Meter(
                self._job.intents,
                self._trial.id,
                self._job.cluster(),
                on_pause=lambda fact, reason: self._job.notices().on_pause(fact, reason),
            )
        self._meter.begin(run)

    def end(self) -> None:
        """The run has ended: record the rest of its use."""
        if self._meter is not None:
            with_long_retries(self._meter.end)

    def _charge(self) -> None:
        if self._meter is None and self._run:
            self.begin(self._run)  # it has got a budget while it runs
        if self._meter is not None:
            self._meter.poll()

    def seconds_to_look(self) -> float:
        """After how many seconds to ask for `stop_cause` again."""
        own = REFRESH_SECONDS if self._meter is None else self._meter.seconds_to_look()
        return min(own, REFRESH_SECONDS)

    # -- causes ----------------------------------------------------------------------------------

    def stop_cause(self) -> Cause | None:
        """Why the trial should not run now, or None; as last known while the store is silent."""
        intents, trial = self._job.intents, self._trial
        try:
            if self._run and trial.superseded(self._run):
                return Cause.KILL
            intents.refresh()
            intents.mark_found(trial.id)
            self._charge()
            self.store_failed = False
        except StoreError as error:
            self.store_failed = True
            log_store_error(error)
        return intents.cause_for(trial.id)

    def signal_cause(self) -> Cause:
        """Time limit or preemption: SIGUSR1 means both on sites with preempt_send_user_signal."""
        own = None
        with contextlib.suppress(SlurmError):
            own = self._job.own_job()
        # Without an answer the limit that the job began with; where that is unknown too, the cause
        # under which code that never saves is not started again without end.
        left = own.time_left if own is not None else self._job.allocation.seconds_left() or 0
        return Cause.TIME_LIMIT if self._job.is_limit_near(left) else Cause.PREEMPTION

    def sigterm_cause(self) -> Cause | None:
        """Why the whole job is being ended; None where the queue shows that the job goes on.

        slurmstepd prints the same line for `scancel --signal=TERM --batch` as for a plain scancel.
        """
        cause = self._end_cause()
        if cause is not Cause.KILL or self.ended_by != "cancelled":
            return cause
        with contextlib.suppress(SlurmError):
            own = self._job.own_job()
            if own is not None and own.state == "RUNNING":
                return None
        return cause

    def _end_cause(self) -> Cause:
        """Why the whole job is being ended, by Slurm's line in its output."""
        intent, self.ended_by = self.stop_cause(), None
        if intent is not None:
            return intent
        self.ended_by = self._job.end_reason()
        return _ENDINGS.get(self.ended_by or "", Cause.ENDING)

    def _last_cause(self) -> Cause:
        """The same once nothing more is to be expected; a line that is missing at the time limit is
        taken for that of the limit: slurmstepd can't write it where the node's memory is full."""
        cause, left = self._end_cause(), self._job.allocation.seconds_left()
        is_over = left is not None and -_LIMIT_SLACK < left < _EARLY
        return Cause.TIME_LIMIT if cause is Cause.ENDING and is_over else cause

    # -- after the end of the step ---------------------------------------------------------------

    def confirm(self, result: AttemptResult) -> None:
        """Distinguish a preemption of the step alone from the end of the job.

        Nodes do not learn of an end at the same moment: the code may have exited before this
        process was signalled, and a job that a user has cancelled must not be requeued.
        """
        if result.job_is_ending:
            # slurmstepd writes its line about the end and sends SIGTERM at about the same time, so
            # the line may have been missing when the signal was handled: it is read again now.
            if result.cause is Cause.ENDING:
                self._set_cause(result)
        elif result.cause is Cause.PREEMPTION and self.is_job_ending():
            self.await_signal(result)
        elif result.agent_lost and result.cause is None and self.is_job_ending():
            # As when Slurm gave its node up: srun ends before this process is signalled.
            result.exit_code, result.why = 128 + signal.SIGKILL, None
            self.await_signal(result)

    def await_signal(self, result: AttemptResult) -> None:
        """Wait for the SIGTERM that is on its way to this process, and read why it came."""
        inbox = self._job.inbox
        until = time.monotonic() + float(self._job.intents.facts.created.kill_wait)
        while signal.SIGTERM not in inbox.take() and time.monotonic() < until:
            inbox.wait(max(0.0, until - time.monotonic()))
        # Also when no signal came in time: without a known reason the cause is ENDING, and a job
        # that ends for an unknown reason is not requeued.
        result.job_is_ending = True
        self._set_cause(result)

    def _set_cause(self, result: AttemptResult) -> None:
        result.cause = self._last_cause()
        result.yield_allocation = meaning(result.cause).yields

    def is_job_ending(self) -> bool:
        """Whether the queue shows it so: in the grace of a preemption it shows a running job."""
        allocation = self._job.allocation
        try:
            own = self._job.own_job()
        except SlurmError:
            return False  # unknown: the reports of the nodes stand
        if own is None or own.ending:
            return own is not None
        # A job that was requeued at once, as after a failure of its node, may run elsewhere by now.
        return allocation.cluster == "slurm" and not set(own.nodes) <= set(allocation.nodes)
