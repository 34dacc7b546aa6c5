"""The best validation of an experiment, for code that asks again and again while it trains."""

from __future__ import annotations

from array import array

from detslurm._base.states import TERMINAL
from detslurm.store import fs, summary
from detslurm.store.curve import last_valid_steps
from detslurm.store.experiment import ExperimentDir
from detslurm.store.experiment_fold import ExperimentFacts
from detslurm.store.reading import ReadCache, read_runs, started_trials
from detslurm.store.trial import Run, TrialDir, reporting_ranks, with_history
from detslurm.store.trial_fold import FoldContext, best_of, clean_validations
from detslurm.store.views import ValidationView


class BestValidation:
    """Remembers what it has read: each question costs the logs' new bytes, and a few names."""

    def __init__(self, experiment: ExperimentDir) -> None:
        self._experiment = experiment
        self._facts = ExperimentFacts()
        self._over: dict[int, ValidationView | None] | None = None
        self._trials: dict[int, _Reader] = {}

    def value(self) -> float | None:
        """The best searcher metric of all trials, None while there is none."""
        facts = self._facts.fold(self._experiment.facts(after=self._facts.count))
        if self._over is None:
            rows = summary.load(self._experiment).valid_rows(facts)
            self._over = {row.id: row.best_validation for row in rows.values()}
        unread = [number for number in facts.trial_ids if number not in self._over]
        started = started_trials(self._experiment, facts, len(unread))
        for number in unread:
            if started is None or number in started:
                self._read_trial(self._experiment.trial(number), facts)
        found = [self._over.get(n) or self._so_far(n) for n in facts.trial_ids]
        best = best_of((one for one in found if one is not None), facts.context(0))
        return None if best is None else best.value

    def _so_far(self, number: int) -> ValidationView | None:
        reader = self._trials.get(number)
        return reader.best if reader is not None else None

    def _read_trial(self, trial: TrialDir, facts: ExperimentFacts) -> None:
        several = facts.created.slots != 1
        reader = self._trials.setdefault(trial.id, _Reader(trial, several_ranks=several))
        reader.read_new(facts.context(trial.id))
        if reader.over and self._over is not None:
            self._over[trial.id] = reader.best
            del self._trials[trial.id]


class _Reader:
    """One trial's validations, as far as they are read."""

    def __init__(self, trial: TrialDir, *, several_ranks: bool) -> None:
        self._trial = trial
        self._several_ranks = several_ranks
        self._runs: list[Run] = []
        self._logs: ReadCache = {}
        self._taken: list[tuple[int, int]] = []  # how far the logs were read for `best`
        self.best: ValidationView | None = None

    @property
    def over(self) -> bool:
        """Whether no run can follow."""
        return any(run.outcome in TERMINAL for run in self._runs)

    def read_new(self, context: FoldContext) -> None:
        """Take in new bytes."""
        self._find_runs()
        if self._several_ranks:
            self._find_ranks()
        facts = read_runs(self._trial, self._runs, self._logs)
        # A log with a problem is read anew at each look, and may be whole then.
        taken = [(log.end, len(log.problems)) for log in self._logs.values()]
        if taken != self._taken:
            limits = last_valid_steps([one.span for one in facts])
            found = clean_validations(facts, limits, context.metric)
            self.best, self._taken = best_of(found, context), taken
        for log in self._logs.values():  # the first step decides, and code asks for days
            if log.training:
                log.training = array("q", [min(log.training)])

    def _find_runs(self) -> None:
        """Runs that were claimed meanwhile: none begins before the end record of the one before."""
        while self._last_has_ended():
            number = self._runs[-1].number + 1 if self._runs else 1
            start = self._trial.start(number)
            if start is None:
                return
            found = [Run(number, start, None)]
            self._runs += found if self._runs else with_history(found)

    def _last_has_ended(self) -> bool:
        if self._runs and self._runs[-1].end is None:
            last = self._runs[-1]
            self._runs[-1] = last._replace(end=self._trial.end(last.number))
        return not self._runs or self._runs[-1].end is not None

    def _find_ranks(self) -> None:
        """Ranks other than the chief that have begun to report."""
        ranks = reporting_ranks(fs.names_in(self._trial.path))
        self._runs = [run._replace(ranks=ranks.get(run.number, ())) for run in self._runs]
