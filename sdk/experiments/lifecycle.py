"""The life of an experiment: paused, continued, stopped, put away, deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from detslurm._base.states import FINISHED
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments import unmanaged
from detslurm.sdk.experiments.base import ExperimentBase
from detslurm.sdk.jobs.status import JobRef
from detslurm.store import NoHardLinks, StoreError, StoreFault, fold_facts
from detslurm.store.errors import NewerFormat

_NAMED = 5  # trials


class Lifecycle(ExperimentBase):
    """The part of `Experiment` that records what its user wants, and acts on the queue."""

    def pause(self) -> None:
        """Let running trials save and exit; nothing starts until `activate()`. A finished
        experiment is a `LifecycleError`."""
        self._refuse_when_over("pause")
        self._intent("pause")
        job_refs = self._unfinished_jobs()
        self._queues.pause(job_refs, runners=self.managed)
        # Activated meanwhile, by a process whose release came before our hold: no other process
        # would release them now.
        if not fold_facts(self._snapshot.directory).desired.paused:
            self._queues.release(job_refs)
        self._warn_if_it_trains_on()

    def activate(self) -> None:
        """Go on: release held jobs, and queue trials again that lost their job. It is a
        `LifecycleError` if the experiment is over or being stopped, its budget is used, or the
        queue does not answer: held jobs stay held then."""
        from detslurm.jobs.resubmit import NeverSubmitted
        from detslurm.sdk.experiments.activation import activate, lost_trials

        if not lost_trials(self._snapshot):
            self._refuse_when_over("activate", self._ways_on())
        if self.view.desired.stopping:
            raise LifecycleError(f"experiment {self.id} is {self.state}: it can't continue")
        budget = self.budget
        if budget is not None and budget.is_used:
            raise LifecycleError(
                f"experiment {self.id} has {budget}: raise it with"
                f" `detslurm experiment set budget {self.id} N` (or none) first"
            )
        self._intent("activate")
        try:
            done = activate(self._snapshot, self._queues)
        except NeverSubmitted as error:
            raise LifecycleError(
                f"experiment {self.id} can't continue: {error}, for its submission broke off:"
                f" `kill` and `delete` experiment {self.id}, and submit it again"
            ) from error
        if not done:
            raise LifecycleError(
                f"experiment {self.id} may still be held: {self._snapshot.facts.cluster} does not"
                " answer, or refuses (see above). Run `activate` again when it does; what an"
                " administrator holds only they can release"
            )

    def cancel(self) -> bool:
        """Let running trials save and exit, and end it; return False if it had already ended."""
        act = partial(self._queues.cancel, runners=self.managed)
        done = self._stop("cancel", act)
        self._warn_if_it_trains_on()
        return done

    def running_on(self, *, never_asks: bool = False) -> str | None:
        """Return which trials run, and until when they may after a pause or a cancellation, in two
        sentences; None if there are no such trials, or if no runner would kill them. With
        `never_asks` (not by default) only trials whose code has not called `should_preempt()`."""
        running = [row.id for row in self._snapshot.trial_rows.values() if row.state == "RUNNING"]
        if not (running and self.managed):
            return None
        try:
            # They run the same code: the first ones are enough.
            views = map(self._snapshot.read_trial, running[:_NAMED])
            asks_never = not any(view.asks_to_preempt for view in views)
            timeout = self._snapshot.directory.config().get("preemption_timeout") or 3600
        except StoreError:
            return None
        if never_asks and not asks_never:
            return None
        more = f" and {len(running) - _NAMED} more" if len(running) > _NAMED else ""
        named = f"{', '.join(map(str, running[:_NAMED]))}{more}"
        trials = f"Trial {named} still runs" if len(running) == 1 else f"Trials {named} still run"
        killed = f"{timeout:,} seconds after it was asked to stop (preemption_timeout)"
        if asks_never:
            return (
                f"{trials}, and the code has not called should_preempt() so far. Code that never"
                f" calls it trains on until it is killed, {killed}."
            )
        return f"{trials}: the code is to save and leave. It is killed {killed}."

    def _warn_if_it_trains_on(self) -> None:
        if text := self.running_on(never_asks=True):
            self._queues.warn(text)

    def kill(self) -> bool:
        """End all jobs of the experiment now; return False if it had already ended. It is a
        `StoreError` if that can't be recorded: its jobs have been ended all the same."""
        return self._stop("kill", self._kill)

    def _kill(self, job_refs: Sequence[JobRef]) -> None:
        self._queues.kill(job_refs)
        if self._snapshot.facts.is_unmanaged_script:
            unmanaged.end(map(self._snapshot.directory.trial, self._snapshot.unfinished))

    def _kill_trial(self, trial_id: int) -> bool:
        """End one trial now; False if it had already ended."""
        row = self._snapshot.trial_rows.get(trial_id)
        if row is None or row.state in FINISHED:
            return False
        self._intent("kill_trial", trial=trial_id)
        if self._snapshot.facts.is_unmanaged_script:
            unmanaged.end([self._snapshot.directory.trial(trial_id)])
            return True
        known = self._snapshot.job_refs
        job_refs = self._own([known[trial_id]]) if trial_id in known else []
        if self._snapshot.facts.searching or any(job.each > 1 for job in self.view.jobs):
            self._queues.notify(job_refs)  # its job continues with other trials
        else:
            self._queues.kill(job_refs, whole=False)
        return True

    def archive(self) -> None:
        """Leave the experiment out of lists. It is a `LifecycleError` if it is not finished."""
        if not self._is_over():
            raise LifecycleError(
                f"can't archive experiment {self.id}: it is {self.state}, not finished"
            )
        self._intent("archive")
        self._snapshot.refresh(())

    def unarchive(self) -> None:
        """Show the experiment in lists again."""
        self._intent("unarchive")
        self._snapshot.refresh(())

    def delete(self, *, force: bool = False) -> None:
        """Remove the experiment's checkpoints, logs, metrics and code. It is a `LifecycleError` if
        it is not finished or a checkpoint of it is needed. With `force` (not by default) files stay
        in a checkpoint storage that is not visible from here."""
        from detslurm.sdk.disk.deletion import delete

        if not self._is_over():
            raise LifecycleError(
                f"can't delete experiment {self.id}: it is {self.state}; kill it first"
            )
        self._refuse_others()
        delete(self._snapshot, force=force)

    def _is_over(self) -> bool:
        """Whether it has ended by now, and has not gone on again, however long ago it was read."""
        # A script that goes on with a trial adds no fact.
        if not self.view.finished or not self.managed or self._snapshot.has_news:
            self._read_again()
        return self.view.finished

    def _stop(self, intent: str, act: Callable[..., None]) -> bool:
        if self.view.finished and self._is_over() and not self._may_come_back():
            return False
        try:
            self._intent(intent)
        except (NewerFormat, NoHardLinks, StoreFault):
            if intent == "kill":  # jobs that write on are what fills a full disk
                act(self._unfinished_jobs())
                self._queues.warn(
                    f"experiment {self.id} can't be recorded as killed: only the jobs that its"
                    " queue shows are ended"
                )
            raise
        act(self._unfinished_jobs())
        return True

    def _may_come_back(self) -> bool:
        """Whether trials were lost whose jobs may be in the queue, by an administrator's doing."""
        from detslurm.sdk.experiments.activation import lost_trials

        if not lost_trials(self._snapshot):
            return False
        queue = self._queues.query((), queue_only=self._jobs_to_end)
        jobs = self._snapshot.without_foreign_jobs(queue).jobs
        return bool(queue.unreachable) or any(not job.final for job in jobs.values())

    def _refuse_when_over(self, what: str, instead: str = "") -> None:
        over = self.view.finished and self._is_over()
        if over or self.view.desired.stopping:
            more = instead if over else ""
            raise LifecycleError(f"can't {what} experiment {self.id}: it is {self.state}{more}")

    def _ways_on(self) -> str:
        """The ways to go on with an experiment that is over, for the end of a message."""
        if not self.managed:
            return ""
        trial = " --trial TRIAL_ID" if self._snapshot.facts.created.search else ""
        return (
            f"; `detslurm experiment continue {self.id}{trial} --context .` goes on from its"
            " checkpoints with the code of this directory,"
            f" `fork {self.id} --context .` begins anew"
        )
