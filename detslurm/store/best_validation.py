"""The best validation of an experiment, for code that asks again and again while it trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from detslurm._base.states import TERMINAL
from detslurm.store import fs, summary
from detslurm.store.curve import last_valid_steps
from detslurm.store.errors import CorruptRecord, StoreFault
from detslurm.store.experiment import ExperimentDir
from detslurm.store.experiment_fold import ExperimentFacts
from detslurm.store.log_lines import line_facts
from detslurm.store.reading import started_trials
from detslurm.store.run_log import lines_of
from detslurm.store.trial import Run, RunLogFile, TrialDir, reporting_ranks, with_history
from detslurm.store.trial_fold import (
    FoldContext,
    RunFacts,
    best_of,
    clean_validations,
)
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
        self._runs: list[_RunReader] = []
        self.best: ValidationView | None = None
        self.over = False

    def read_new(self, context: FoldContext) -> None:
        """Take in new bytes."""
        self._find_runs()
        if self._several_ranks:
            self._find_ranks()
        files = self._trial.log_files([reader.run for reader in self._runs])
        news = [reader.read_new(files[reader.run.number]) for reader in self._runs]
        if any(news):
            facts = [reader.facts for reader in self._runs]
            limits = last_valid_steps([one.span for one in facts])
            found = clean_validations(facts, limits, context.metric)
            self.best = best_of(found, context)
        self.over = any(r.run.outcome in TERMINAL for r in self._runs)

    def _find_runs(self) -> None:
        """Runs that were claimed meanwhile: none begins before the end record of the one before."""
        while not self._runs or self._runs[-1].ended(self._trial):
            number = self._runs[-1].run.number + 1 if self._runs else 1
            start = self._trial.start(number)
            if start is None:
                return
            found = [Run(number, start, None)]
            found = found if self._runs else with_history(found)
            self._runs += map(_RunReader, found)

    def _find_ranks(self) -> None:
        """Ranks other than the chief that have begun to report."""
        ranks = reporting_ranks(fs.names_in(self._trial.path))
        for reader in self._runs:
            reader.run = reader.run._replace(ranks=ranks.get(reader.run.number, ()))


class _RunReader:
    """One run's validations and the first steps of all else."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._logs: dict[int, _LogReader] = {}

    @property
    def facts(self) -> RunFacts:
        """The input of the fold of a trial's validations."""
        logs = [self._logs[rank] for rank in sorted(self._logs, reverse=True)]
        return RunFacts(
            number=self.run.number,
            start=self.run.start,
            records=[record for log in logs for record in log.validations],
            training_steps=[step for log in logs for step in log.training],
            other_steps=[step for log in logs for step in log.other],
        )

    def ended(self, trial: TrialDir) -> bool:
        """Whether it has its end record."""
        if self.run.end is None:
            self.run = self.run._replace(end=trial.end(self.run.number))
        return self.run.end is not None

    def read_new(self, files: Sequence[RunLogFile]) -> bool:
        """Take in new bytes; whether anything has changed."""
        news = [self._logs.setdefault(f.rank, _LogReader(f.path)).read_new(f.limit) for f in files]
        return any(news)


class _LogReader:
    """One rank's validations and the first steps of all else, read up to some byte of its log."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._clear()

    def _clear(self) -> None:
        self._offset = 0
        self._broken = False
        self.validations: list[dict[str, Any]] = []
        self.training: list[int] = []
        self.other: list[int] = []

    def read_new(self, limit: int | None) -> bool:
        """Take in new bytes up to `limit`; whether anything has changed."""
        again = self._broken or (limit is not None and limit < self._offset)
        if again:
            self._clear()  # a later run does not count all that was read, or it may be whole now
        before = self._offset
        try:
            for offset, line in lines_of(self._name, limit, before, []):
                self._offset = offset + len(line) + 1
                self._take(line)
        except StoreFault:
            self._broken = True  # the bytes read before are lost to the caller
            raise
        return again or self._offset > before

    def _take(self, line: bytes) -> None:
        try:
            found = line_facts(line)
        except CorruptRecord:
            self._broken = True  # or not there yet; `describe` reports it
            return
        self.training = sorted([*self.training, *found.training])[:1]
        self.other = sorted([*self.other, *found.other])[:1]
        self.validations += [one for one in found.records if one.get("t") == "metrics"]
