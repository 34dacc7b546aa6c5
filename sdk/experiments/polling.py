"""Waiting for experiments and trials: the store is read often, the queue is queried rarely."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from detslurm._base.states import FINISHED
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.reconcile import attach_job_status
from detslurm.sdk.jobs.queues import QUEUE_SECONDS, Clock
from detslurm.sdk.trials.log_lines import EVERYTHING, Filter, LogLine
from detslurm.sdk.trials.logs import before_any_run, follow

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.trials.trial import Trial

# Seconds before the second reading; the pauses grow from there.
_FIRST_PAUSE = 0.25

Sleep = Callable[[float], None]


class ExperimentPoller:
    """Reads an experiment repeatedly; finished trials are never read twice."""

    def __init__(
        self,
        experiment: Experiment,
        trials: Collection[int] | None = None,
        *,
        clock: Clock = time.monotonic,
    ) -> None:
        self._experiment = experiment
        self._trials = trials  # those to read, None for all
        self._clock = clock
        self._queue_at = clock() + QUEUE_SECONDS
        # Seconds: a big experiment costs a shared file system more to read, and is read less often.
        self.rest = 0.0

    @property
    def due(self) -> bool:
        """Whether the queue may be queried again."""
        return self._clock() >= self._queue_at

    def poll(self) -> None:
        """Read the news of the store, and query the queue when that is due."""
        one, began = self._experiment._snapshot, self._clock()
        one.refresh(self._trials)
        if self.due:
            attach_job_status([one], self._experiment._queues)
            self._queue_at = self._clock() + QUEUE_SECONDS
        self.rest = 20 * (self._clock() - began)

    def message(self) -> str | None:
        """Why an unfinished trial does not run, of the first that has a reason."""
        one = self._experiment._snapshot
        if one.message:
            return one.message
        messages = (one.job_statuses[t].message for t in one.unfinished if t in one.job_statuses)
        return next((message for message in messages if message), None)


def wait(
    experiment: Experiment,
    *,
    interval: float = 5.0,
    report: Callable[[str], None] = lambda text: None,
    clock: Clock = time.monotonic,
    sleep: Sleep = time.sleep,
) -> str:
    """Wait until the experiment is over, or paused with nothing running; returns its state. The
    store is read every `interval` seconds, and more often at first, for short experiments."""
    poller = ExperimentPoller(experiment, clock=clock)
    reported, pause = None, min(_FIRST_PAUSE, interval)
    if experiment.view.finished or _is_at_rest(experiment):
        poller.poll()  # it may have been activated since it was read
    while True:
        text = progress(experiment, poller.message())
        if text != reported:
            report(text)
            reported = text
        if experiment.view.finished or _is_at_rest(experiment):
            return experiment.state
        sleep(max(pause, poller.rest))
        pause = min(1.5 * pause, interval)
        poller.poll()


def first_trial(
    experiment: Experiment,
    *,
    interval: float = 0.1,
    sleep: Sleep = time.sleep,
) -> Trial:
    """Wait for the first trial that a search makes. Raises `LifecycleError` if it ends without."""
    poller = ExperimentPoller(experiment)
    while True:
        try:
            return experiment.first_trial()
        except LifecycleError:
            if experiment.view.finished:
                raise
        sleep(max(interval, poller.rest))
        poller.poll()


def _is_at_rest(experiment: Experiment) -> bool:
    view = experiment.view
    return view.state == "PAUSED" and "RUNNING" not in view.trial_states


def progress(experiment: Experiment, message: str | None = None) -> str:
    """How far an experiment is, in a line."""
    view = experiment.view
    counts = ", ".join(f"{n} {state}" for state, n in sorted(view.trial_states.items()))
    if to_come := view.trial_count - sum(view.trial_states.values()):
        counts += f", {to_come} to come"
    text = f"experiment {view.id} is {view.state}, {100 * view.progress:.0f}% done ({counts})"
    return f"{text}; {message}" if message and "RUNNING" not in view.trial_states else text


class _Follower:
    """Knows when a trial is over; while nothing changes, a poll costs two file names."""

    def __init__(
        self, trial: Trial, report: Callable[[str], None], clock: Clock, sleep: Sleep
    ) -> None:
        self._trial = trial
        self._poller = ExperimentPoller(trial.experiment, [trial.id], clock=clock)
        self._report = report
        self._sleep = sleep
        self._reported: str | None = None
        self._ended = 0  # the newest run whose end record was seen

    def is_over(self, run: int) -> bool:
        if self._poller.due or self._has_changed(run):
            self._poller.poll()
        return self._trial.state in FINISHED or self._trial.experiment.state == "DELETED"

    def _has_changed(self, run: int) -> bool:
        experiment = self._trial.experiment._snapshot
        if next(experiment.directory.facts(experiment.facts.count), None):
            return True
        if run > self._ended and self._trial.directory.end(run, fresh=True) is not None:
            self._ended = run
            return True
        return False

    def idle(self) -> None:
        message = self._explanation()
        if message and message != self._reported:
            self._report(message)
        self._reported = message
        self._sleep(1.0)

    def _explanation(self) -> str | None:
        trial = self._trial
        if trial.experiment.state == "PAUSED" and trial.state == "PAUSED":
            return f"trial {trial.id} is paused: `detslurm e activate {trial.experiment.id}`"
        if trial.state == "PAUSED":  # by the search: the user need not act
            return (
                f"trial {trial.id} is paused by the search, and continues if the search promotes it"
            )
        status = trial.job_status
        return status.message if status and self._ended == trial.row.run_count else None


def follow_logs(
    trial: Trial,
    wanted: Filter = EVERYTHING,
    *,
    tail_count: int | None = None,
    report: Callable[[str], None] = lambda text: None,
    sleep: Sleep = time.sleep,
    clock: Clock = time.monotonic,
) -> Iterator[LogLine]:
    """The trial's lines as they come until the trial is over; reports why none come."""
    one = _Follower(trial, report, clock, sleep)
    yield from follow(trial.directory, one.is_over, one.idle, wanted, tail_count=tail_count)
    yield from before_any_run(trial, wanted)
