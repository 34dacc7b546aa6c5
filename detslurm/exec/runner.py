"""The runner: the batch script's own process, a worker for the trials of one experiment.

Each attempt is a step of its own, so that whatever happens to the code the runner lives on and
decides: the next attempt here, the next trial, requeue, hold, a successor job, or done. Exit codes
alone never requeue a job: it must ask.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from detslurm._base import central, contract, pythonpath
from detslurm.config.run_config import RunConfig
from detslurm.exec.execution import Execution
from detslurm.exec.gc import CheckpointCollection
from detslurm.exec.intents import Intents
from detslurm.exec.outcome import Action, AttemptResult, Cause, Decision
from detslurm.exec.run_claim import JobContext
from detslurm.exec.signals import SignalInbox, discard_signals
from detslurm.exec.steps import Steps
from detslurm.exec.text_log import log_store_error, print_message, retried, with_long_retries
from detslurm.exec.trial_queue import QueuedTrial, StaticTrialQueue, TrialQueue
from detslurm.slurm import SLURM_OUTPUT_FD, Allocation, SlurmError
from detslurm.store import ExperimentDir, RunTaken, StoreError, TrialEnded, TrialView, refuse_newer

if TYPE_CHECKING:
    from detslurm.slurm import Cluster

_NO_SUCCESSOR = "no successor could be submitted"


class Runner:
    """Works for trials until there is nothing to do or this job has to give way.

    The trials `first` .. `first` + `each` - 1 of a plain job; the elements of an array have as many
    each, one after the other. The workers of a search find their trials in its log instead.
    """

    def __init__(self, experiment_dir: Path, first: int, each: int = 1) -> None:
        # From the first moment on: Slurm's signals may come while the store is still being read,
        # and the default action of SIGUSR1 and SIGUSR2 would end the job. A SIGTERM that is earlier
        # still ends a job in which no run has begun: there is nothing to record.
        discard_signals()
        self._argv = [str(experiment_dir), str(first), str(each)]
        self._inbox = SignalInbox([signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM])
        self._experiment = ExperimentDir.at(experiment_dir)
        self._intents = Intents(self._experiment)
        with_long_retries(self._intents.refresh)
        # Before the configuration, which a newer version may write in another way.
        refuse_newer(experiment_dir, self._intents.facts.format)
        self._config = self._read_config()
        allocation = Allocation.from_environment()
        if allocation is None:
            raise SystemExit(
                "detslurm runner: this is not a job; `detslurm submit` starts runners in jobs"
            )
        self._allocation = allocation
        self._job = JobContext(
            self._intents,
            self._config,
            allocation,
            self._cluster,
            self._inbox,
            end_reason=partial(allocation.end_reason, *_slurm_output()),
            steps=Steps(allocation, self._config, self._experiment.path),
        )
        self._trial_queue: TrialQueue = self._make_trial_queue(first, each)
        self._collection = CheckpointCollection(self._experiment, self._config)
        self._excluded: list[str] = []
        self._worked = self._failed = self._yielded = False
        self._longest = 0.0  # seconds that a trial took

    @retried
    def _read_config(self) -> RunConfig:
        self._experiment.refuse_others_code()
        return self._experiment.run_config()

    def _make_trial_queue(self, first: int, each: int) -> TrialQueue:
        if self._intents.facts.created.search:
            # Only here: other runners start without it.
            from detslurm.exec.search_worker import SearchTrialQueue

            return SearchTrialQueue(
                self._intents, self._config, ref=self._allocation.ref, cluster=self._cluster()
            )
        first += (self._allocation.array_task_id or 0) * each
        share = range(first, min(first + each, self._intents.facts.created.trials))
        return StaticTrialQueue(
            self._intents,
            self._config,
            share,
            ref=self._allocation.ref,
            cluster=self._cluster,
        )

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> int:
        """Work; returns the exit status of the job: 0 unless a trial failed."""
        self._submit_deferred()
        while self._trial_queue.has_work():
            cause = self._stop_cause()
            if cause is not None:
                self._on_stop_cause(cause)
                break
            if self._worked:
                self._outlive_removal()
            if self._worked and (self._time_is_short() or self._may_not_suffice()):
                self._yield_allocation(Action.REQUEUE)
                break
            task = self._trial_queue.take()
            if task is None:  # another worker has been faster, or the user has killed the trial
                continue
            execution = Execution(task, self._trial_queue, self._job)
            with self._collection.watching(task.trial_id, len(self._intents.facts.trial_ids)):
                going_on = self._work_on(execution)
            if not going_on:
                break
            self._submit_deferred()
        self._job.steps.end()
        if self._trial_queue.concluded:
            self._compact()
            self._job.notices().on_experiment_over()
            self._collection.collect()
        self._job.notices().finish()
        if self._worked and self._intents.facts.created.environment is not None:
            self._leave_environment()
        return 1 if self._failed else 0

    def _leave_environment(self) -> None:
        """Free the disks of the nodes, unless jobs are to come that use the same copies."""
        if self._yielded:
            return
        last = self._experiment.trial(self._intents.facts.trial_ids[-1])
        is_ending = self._stop_cause() in (Cause.KILL, Cause.CANCEL)
        if is_ending or with_long_retries(lambda: last.start(1)) is not None:
            from detslurm.exec.staging import leave_nodes  # only here: others pay nothing

            leave_nodes(self._allocation)

    def _outlive_removal(self) -> None:
        """Go on with the newest version where an administrator has removed this one."""
        if central.replacement() is not None:
            self._job.steps.end()
            _become_the_newest(self._argv)

    def _stop_cause(self) -> Cause | None:
        try:
            self._intents.refresh()
        except StoreError as err:
            log_store_error(err)
        return self._intents.cause

    def _on_stop_cause(self, cause: Cause) -> None:
        """The user no longer wants anything to run now."""
        if cause is Cause.PAUSE:
            self._yield_allocation(Action.HOLD)

    def _work_on(self, execution: Execution) -> bool:
        """Run a trial until it is over or has to wait; whether this job goes on with others."""
        self._worked = True
        # A signal that comes between two attempts stays in the inbox, whose pipe is then readable:
        # the next attempt sees it before anything else, and its agents are asked to stop.
        begun = time.monotonic()
        try:
            decision, result = execution.run()
            self._excluded = execution.excluded
            while decision.action is Action.RETRY and not self._on_excluded_node:
                if execution.stop_cause() is not None:
                    return self._abandon(execution, decision)
                self._outlive_removal()
                task = self._trial_queue.retake(execution.task)
                if task is None:
                    return True
                execution.task = task
                self._collection.before_restart(task.trial_id)
                decision, result = execution.run()
        except (TrialEnded, RunTaken) as err:
            # The claim of a run decides, not what the queue showed before: after a requeue or a
            # node that came back two jobs may work for one trial, and this job has lost it.
            print_message(str(err))
            return False
        self._longest = max(self._longest, time.monotonic() - begun)
        if execution.is_superseded():
            return False  # the runner that goes on with the trial records its end
        return self._after(execution, decision, result)

    def _abandon(self, execution: Execution, decision: Decision) -> bool:
        """The user wants no further run of this trial now."""
        self._release_trial(execution, decision, going_on=False)
        cause = self._stop_cause()
        if cause is not None:
            self._on_stop_cause(cause)
        return cause is None

    def _release_trial(
        self, execution: Execution, decision: Decision, *, going_on: bool
    ) -> TrialView:
        view = execution.view()
        self._trial_queue.release(execution.task, decision, view, going_on=going_on)
        return view

    def _after(self, execution: Execution, decision: Decision, result: AttemptResult) -> bool:
        over = decision.action is Action.STOP
        going_on = (
            over
            and not result.yield_allocation
            and not result.job_is_ending
            and self._stop_cause() is None
            and not self._time_is_short()
        )
        view = self._release_trial(execution, decision, going_on=going_on)
        self._failed |= decision.outcome == "error"
        if over:
            if (
                result.yield_allocation
                and self._stop_cause() is None
                and self._trial_queue.has_work()
            ):
                self._yield_allocation(Action.REQUEUE, ending=result.job_is_ending)
            # Last, for it may take longer than there is time: the next run to tidy does the rest.
            self._tidy(execution.task, view)
            return not result.yield_allocation and not result.job_is_ending
        self._yield_allocation(decision.action, ending=result.job_is_ending)
        return False

    def _tidy(self, task: QueuedTrial, view: TrialView) -> None:
        """The runner that ends the last trial of an experiment compacts its metrics; each runner
        collects checkpoints."""
        if self._intents.facts.created.task == "shell":
            from detslurm._base.node_files import remove  # only here: others pay nothing
            from detslurm._base.ssh_client import host_alias

            # Its server has done so, unless it was killed.
            trial, name = self._experiment.trial(task.trial_id), host_alias(self._experiment.id)
            remove(trial.path / name)
        is_last = False
        try:
            # Two runners whose trials end at the same moment may both come here: each writes a file
            # of its own and renames it, and both files have the same content.
            is_last = self._trial_queue.is_experiment_over()
        except (StoreError, OSError) as err:
            print_message(f"the metrics are not compacted: {err}")
        if is_last:
            self._compact()
            self._job.notices().on_experiment_over()
        if is_last or view.checkpoints:  # without any, its end changes nothing for others
            trials = len(self._intents.facts.trial_ids)
            self._collection.after_trial(task.index, task.trial_id, trials, is_last=is_last)

    def _compact(self) -> None:
        try:
            from detslurm.store import (
                compact,  # h5py: only here, never at start
                remember_used,
            )

            remember_used(self._experiment, self._intents.facts.trial_ids)
            compact(self._experiment)
        except (StoreError, OSError, ImportError) as err:
            print_message(f"the metrics are not compacted: {err}")

    def _time_is_short(self) -> bool:
        """Whether a trial that began now would be asked to stop almost at once."""
        return self._job.is_limit_near(self._allocation.seconds_left())

    def _may_not_suffice(self) -> bool:
        """Whether a trial that was to have a job of its own should begin with all of the time."""
        facts, left = self._intents.facts, self._allocation.seconds_left()
        may_requeue = facts.created.on_preempt != "successor"
        deferring = facts.deferral is not None and may_requeue
        return deferring and left is not None and left < 2 * self._longest

    def _submit_deferred(self) -> None:
        """Submit trials for which there was no room, if there is some now."""
        if self._intents.facts.deferral is not None:
            from detslurm.exec.deferred import submit_deferred  # only here: others start faster

            submit_deferred(self._intents, self._config, self._allocation.ref, self._cluster)

    # -- giving way ------------------------------------------------------------------------------

    def _cluster(self, name: str | None = None) -> Cluster:
        from detslurm.slurm import detect_cluster  # only where the queue is asked: few runners do

        return detect_cluster(name or self._allocation.cluster, root=self._experiment.store.path)

    def _yield_allocation(self, action: Action, *, ending: bool = False) -> None:
        """Requeue exactly this element, or submit a successor where that is not possible.

        `ending`: Slurm ends the job, for a known reason. Otherwise a job that a user has cancelled
        meanwhile stays cancelled.
        """
        # A requeue makes Slurm end this job, and with it this process: SIGTERM arrives while we
        # wait for scontrol's answer. The rest of the work has KillWait seconds, until SIGKILL.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._yielded = True
        hold = action is Action.HOLD
        if hold and ending:
            self._cluster().hold([self._allocation.ref])  # should Slurm requeue it on its own
            return
        ref = self._going_on(hold, ending)
        if hold and self._stop_cause() is not Cause.PAUSE:
            # The user has activated it between our reading and our hold: `activate` has released a
            # job that was not held yet, and no command would release it now.
            self._cluster().release([ref])

    def _going_on(self, hold: bool, ending: bool) -> str:
        """The job that goes on: this one, requeued, or a successor."""
        if not self._on_excluded_node:
            return self._requeued(hold, ending) or self._submit_successor(hold)
        try:
            return self._submit_successor(hold)
        except SlurmError as err:
            # Jobs may not submit everywhere. The same node is better than no job.
            if (ref := self._requeued(hold, ending)) is None:
                raise
            print_message(f"{err}: requeued instead")
            return ref

    def _requeued(self, hold: bool, ending: bool) -> str | None:
        """Put this job back into the queue; None where only a successor can go on."""
        ref = self._allocation.ref
        if self._intents.facts.created.on_preempt == "successor":
            return None
        try:
            self._cluster().requeue(ref, hold=hold, only_running=not (hold or ending))
        except SlurmError as err:
            # An administrator, or the user by hand, may have been faster. A successor of a job that
            # is already pending again would make two jobs for one trial.
            if not _was_requeued(err):
                print_message(f"requeue failed, submitting a successor: {err}")
                return None
            if hold:
                self._cluster().hold([ref])
        return ref

    @property
    def _on_excluded_node(self) -> bool:
        return not set(self._excluded).isdisjoint(self._allocation.nodes)

    def _submit_successor(self, hold: bool) -> str:
        # Only here: every runner pays for the imports at its start.
        from detslurm.jobs.resubmit import NeverSubmitted, submitted_fact, successor_request

        share, cluster = self._trial_queue.remaining_trials(), self._cluster()
        try:
            request = with_long_retries(
                lambda: successor_request(
                    self._experiment.facts(),
                    self._experiment,
                    share.start,
                    each=len(share),
                    after=self._allocation.ref,
                    hold=hold,
                    exclude=self._excluded,
                )
            )
            # Only writing the script is retried, before sbatch: no job can be there twice.
            job_id = with_long_retries(lambda: cluster.submit(request))
        except NeverSubmitted as err:  # its `submit` was killed
            why = "how this job was submitted is not recorded"
            raise SlurmError(f"{_NO_SUCCESSOR}: {why}") from err
        except SlurmError as err:
            raise SlurmError(f"{_NO_SUCCESSOR}: {err.message}", err.advice) from err
        except OSError as err:
            raise SlurmError(f"{_NO_SUCCESSOR}: {err}") from err
        fact = submitted_fact(cluster.name, job_id, share.start, request, each=len(share))
        with_long_retries(lambda: self._experiment.append(fact))
        return job_id


def _slurm_output() -> tuple[Path, int]:
    """The file where Slurm writes why it ends the job, and its size of now.

    It is not this process's output, which is in the store, and has no name any more. If another
    user has taken its name first, the file may contain anything.
    """
    with contextlib.suppress(OSError):
        file = os.fstat(SLURM_OUTPUT_FD)
        if file.st_uid == os.geteuid():
            return Path(f"/proc/self/fd/{SLURM_OUTPUT_FD}"), file.st_size
    return Path("/proc/self/fd/1"), os.fstat(1).st_size


def _was_requeued(refusal: SlurmError) -> bool:
    """Whether an administrator, or the user by hand, was faster than us."""
    return "pending execution" in refusal.message.lower()


def _become_the_newest(argv: list[str]) -> None:
    """Let the newest version take the place of this process, if this version was removed: it finds
    the job's trial as after a requeue."""
    if (python := central.replacement()) is None:
        return
    print_message(f"{sys.executable} is not there any more: {python} goes on")
    for stray in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
        signal.signal(stray, signal.SIG_IGN)  # as in the batch script, until there are handlers
    os.execv(python, [python, "-P", "-m", "detslurm.exec.runner", *argv])


def main(argv: list[str]) -> int:
    os.environ[contract.RUNNER] = "1"
    pythonpath.append_what_is_aside()
    try:
        return Runner(Path(argv[0]), *map(int, argv[1:])).run()
    except ImportError:
        _become_the_newest(argv)
        raise
    except (StoreError, SlurmError, OSError) as err:
        print_message(str(err))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
