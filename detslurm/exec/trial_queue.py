"""Chooses the next trial of a worker, and reports about the one before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from detslurm._base.states import COMPLETED, ERROR, INVALID_HP, TERMINAL
from detslurm.config.run_config import RunConfig
from detslurm.exec.intents import Intents
from detslurm.exec.outcome import Decision
from detslurm.exec.text_log import print_message, retried
from detslurm.searcher import TrialPlan
from detslurm.searcher.sampling import Samples
from detslurm.slurm import SlurmError
from detslurm.store import ExperimentDir, TrialDir, TrialView, fold_trial, fs
from detslurm.store.records import Trials
from detslurm.store.retry import LONG
from detslurm.store.run_records import JobRecord

if TYPE_CHECKING:
    from detslurm.slurm import Cluster

# In an experiment of more jobs only some of their ends ask for orphans, until late trials begin.
_LOOKS: Final = 32
_BACK: Final = (1, 2, 4, 8, 16, 32)


class QueuedTrial(msgspec.Struct, frozen=True):
    """One trial to run: what it trains, and whose checkpoint it starts from."""

    index: int
    trial_id: int
    plan: TrialPlan
    source: str | None = None
    source_steps: int = 0  # what a copy counts as trained already
    fencing_token: int | None = None  # under which the search gave the trial away


class SearchVerdict(msgspec.Struct, frozen=True):
    """The search's decision about a trial: to stop it, to let it rest, or neither."""

    stop: bool = False
    rest: bool = False


class TrialQueue(Protocol):
    """Where a worker's trials come from.

    `has_work`, `take`, `retake` and `release` go on over minutes in which the store can't be used.
    """

    def has_work(self) -> bool:
        """Whether there is work for this worker, as far as it knows."""

    def take(self) -> QueuedTrial | None:
        """The trial to run now; None when others were faster."""

    def retake(self, task: QueuedTrial) -> QueuedTrial | None:
        """The same trial for another run of it; None when it is not this worker's any more."""

    def verdict(self, task: QueuedTrial, view: TrialView) -> SearchVerdict:
        """The search's decision about the trial, now that a run of it has ended."""

    def on_run_ending(self, task: QueuedTrial, decision: Decision) -> None:
        """The run is about to get its end record."""

    def release(
        self, task: QueuedTrial, decision: Decision, view: TrialView, *, going_on: bool
    ) -> None:
        """This worker has left the trial, and takes another one or not."""

    def is_experiment_over(self) -> bool:
        """Whether the whole experiment has just ended, as far as this worker knows."""

    @property
    def concluded(self) -> bool:
        """Whether this worker has looked for work and was the first to see that all is over."""

    def remaining_trials(self) -> range:
        """The trials that are left for a successor of this job."""


class StaticTrialQueue:
    """The worker's own share of trials that are known from the start, in their order."""

    def __init__(
        self,
        intents: Intents,
        config: RunConfig,
        share: range,
        *,
        ref: str,
        cluster: Callable[[str | None], Cluster],
    ) -> None:
        self._intents, self._share = intents, share
        self._experiment: ExperimentDir = intents.experiment
        self._ref, self._cluster = ref, cluster
        self._searcher, self._max_restarts = config.searcher, config.max_restarts
        seed = config.reproducibility.experiment_seed
        self._samples = Samples(config.plain["searcher"], config.hyperparameters, seed)
        self._gone: set[int] = set()  # over, or not for this job
        self._over: set[int] = set()  # the ids of trials that were seen to be over
        self._found: int | None = None

    @retried
    def has_work(self) -> bool:
        self._found = self._next()
        return self._found is not None

    def take(self) -> QueuedTrial | None:
        index, self._found = self._found, None  # as `has_work` has just seen it
        if index is None:
            return None
        return QueuedTrial(index, self._intents.facts.trial_id(index), self._samples.plan(index))

    def _next(self) -> int | None:
        for index in self._indices():
            if index in self._gone:
                continue
            reason = self._refusal(self._intents.facts.trial_id(index))
            if reason is None:
                return index
            print_message(reason)
            self._gone.add(index)
        return None

    def _indices(self) -> Iterator[int]:
        """Own trials, then adopted ones, each followed by those that replace it."""
        for index in (*self._share, *self._adopted):
            yield from self._with_replacements(index)

    @property
    def _adopted(self) -> list[int]:
        return [index for index, ref in self._intents.facts.adopted.items() if ref == self._ref]

    def _with_replacements(self, index: int) -> Iterator[int]:
        current: int | None = index
        while current is not None:
            yield current
            current = self._intents.facts.replaced.get(current)

    def _refusal(self, trial_id: int) -> str | None:
        """Why this job must not run the trial: it is over, or another job is at it."""
        view = fold_trial(self._experiment.trial(trial_id))
        if view.final:
            return f"trial {view.id} is over: {view.state} ({view.end_reason})"
        if self._intents.cause is None and self._intents.cause_for(trial_id) is not None:
            return f"trial {view.id} was killed by the user"
        if not view.runs or view.runs[-1].outcome is not None:
            return None
        other = view.runs[-1].job
        if other.ref == self._ref:
            return None
        if self._is_at_work(other, self._experiment.trial(trial_id), view.runs[-1].number):
            return f"trial {view.id} is being run by job {other.ref}; nothing to do here"
        return None

    def _is_at_work(self, other: JobRecord, trial: TrialDir, run: int) -> bool:
        """Whether another job goes on with its run, which a run of this one would end."""
        written: list[int | None] | None = None
        for pause in LONG:
            try:
                job = self._cluster(other.cluster).query([other.ref]).get(other.ref)
            except SlurmError as error:
                if written is None:
                    print_message(f"is job {other.ref} at trial {trial.id}? Asking again: {error}")
                    written = _written(trial, run)
            else:
                strange = job is not None and job.is_foreign_to(str(self._experiment.jobs))
                return job is not None and job.running and not strange
            time.sleep(pause)
            self._intents.refresh()
            if self._intents.cause is not None:
                return True  # nothing is to be begun then
        # An answer may never come: the trial must not wait for it.
        return _written(trial, run) != written

    def retake(self, task: QueuedTrial) -> QueuedTrial | None:
        return task

    def verdict(self, task: QueuedTrial, view: TrialView) -> SearchVerdict:
        return SearchVerdict()

    def on_run_ending(self, task: QueuedTrial, decision: Decision) -> None:
        # Before the end record, or a crash between the two would leave the search a trial short.
        if decision.outcome == INVALID_HP and self._searcher.name == "random":
            self._replace(task.index)
        if decision.outcome in (COMPLETED, ERROR, INVALID_HP):
            left = (i for i in self._indices() if i not in self._gone and i != task.index)
            if self._intents.cause is None and next(left, None) is None:
                self._go_on_after(task.index)

    def _go_on_after(self, last: int) -> None:
        """Once the own share is done, go on with trials that have no job, or whose job died."""
        if self._take_deferred() or not self._looks_for_orphans(last):
            return
        if not (self._return_unbegun() and self._take_deferred()):
            self._adopt_orphaned_trial(last)

    def _return_unbegun(self) -> bool:
        """Let trials whose jobs died before a run began wait for another job; whether any do."""
        trials = map(self._experiment.trial, self._intents.facts.trial_ids)
        if all(fs.exists(trial.start_path(1)) for trial in trials):
            return False
        from detslurm.exec.bad_nodes import BadNodes  # only here: runners start without it

        return BadNodes(self._intents, lambda: self._cluster(None)).return_unbegun()

    def _take_deferred(self) -> bool:
        """Go on with trials for which there was no room in the queue; whether there are any."""
        intents = self._intents
        while intents.facts.deferred and intents.cause is None:
            from detslurm.jobs.deferred import take  # only here: runners start without it

            name, known = self._cluster(None).name, intents.facts.count
            taken = take(self._experiment, intents.facts, name, self._ref)
            intents.refresh()
            if taken:
                print_message("there is no job for more trials yet: going on with some here")
                return True
            if intents.facts.count == known:
                return False  # no other job was faster: there is nothing to take them by
        return False

    def _adopt_orphaned_trial(self, last: int) -> None:
        """Go on with the next trial whose runner died."""
        index = next(self._open(but=last), None)
        if index is None:
            return
        from detslurm.exec.adoption import adopt  # only here: runners start without it

        if adopt(self._intents, index, self._ref, self._cluster, most=self._max_restarts):
            self._intents.refresh()
            trial_id = self._intents.facts.trial_id(index)
            print_message(f"the runner of trial {trial_id} died: going on with it here")

    def _looks_for_orphans(self, last: int) -> bool:
        """Whether to ask Slurm's controller for it: of many jobs' ends some do. All do once one of
        the last trials has begun, because no other job may come after them."""
        ids = self._intents.facts.trial_ids
        each = max(len(self._share), 1)
        if last // each % -(-len(ids) // (each * _LOOKS)) == 0:
            return True
        # Not the very last alone, for a user may have cancelled it before it began.
        late = [ids[-back] for back in _BACK if back <= len(ids)]
        return any(self._experiment.trial(one).start(1, fresh=True) is not None for one in late)

    def _replace(self, index: int) -> None:
        """Add a sample in place of an invalid sample, once, however many workers try."""
        from detslurm.searcher.method import may_replace  # only here: a runner starts without it

        intents, most = self._intents, self._searcher.max_trials
        first = None
        while index not in intents.facts.replaced:
            if not may_replace(len(intents.facts.replaced), most):
                return
            intents.facts.refuse_gap("no trial is replaced")
            first = first or self._experiment.store.reserve_trials(self._experiment.id, 1)
            fact = Trials(first_trial=first, trials=1, replaces=index)
            self._experiment.append_next(fact, intents.facts.count)
            intents.refresh()

    def release(
        self, task: QueuedTrial, decision: Decision, view: TrialView, *, going_on: bool
    ) -> None:
        if decision.outcome in TERMINAL:
            self._gone.add(task.index)

    def is_experiment_over(self) -> bool:
        return next(self._open(), None) is None

    @property
    def concluded(self) -> bool:
        return False  # a worker that ends a trial looks for others that are open

    def _open(self, but: int | None = None) -> Iterator[int]:
        """Trials that are not over, except trial `but`."""
        # Those that begin after the own one are the likeliest to run still: they are asked first.
        ids, first = self._intents.facts.trial_ids, self._share.start
        for index in (*range(first, len(ids)), *range(first)):
            if index != but and not self._is_over(ids[index]):
                yield index

    def _is_over(self, trial_id: int) -> bool:
        if trial_id not in self._over:
            runs = self._experiment.trial(trial_id).runs()
            if not runs or runs[-1].outcome not in TERMINAL:
                return False
            self._over.add(trial_id)  # for good: a job of many trials looks after each of them
        return True

    def remaining_trials(self) -> range:
        own, others = self._share, self._adopted
        left = [i for i in (*own, *others) if not self._gone.issuperset(self._with_replacements(i))]
        if not left:
            return own[:0]
        stop = own.stop if left[0] in own else left[0] + 1
        while stop in others:
            stop += 1
        return range(left[0], stop)


def _written(trial: TrialDir, run: int) -> list[int | None]:
    """How much a run has written by now."""
    return [fs.size_of(path) for path in (trial.log_path(run), trial.records_path(run))]
