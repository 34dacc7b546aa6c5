"""The state of a search, for display: its trials, its brackets and rungs, its progress."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

import msgspec

from detslurm._base.states import FINISHED, LOST, TERMINAL
from detslurm.sdk.jobs.status import JobRef
from detslurm.searcher import Search, SearchTrial, State
from detslurm.store import EventLog, ExperimentDir, ExperimentFacts, Problem, TrialRow, TrialView
from detslurm.store.errors import NewerFormat, RecordMissing
from detslurm.store.trial_fold import trained_share

Row = TypeVar("Row", bound=TrialRow)
# A trial's status in the search, as a trial's state.
_STATES = {"waiting": "QUEUED", "paused": "PAUSED"}


_OF_A_RUNG = ("units", "trials", "outstanding", "best", "best_trial")

_Assignment = tuple[str, str | None, int]


def _assignment(trial: SearchTrial) -> _Assignment:
    """A trial in a search: its status, its worker, and the number of its run."""
    return trial.status, trial.worker, trial.fencing_token


def _with_lost_run(row: Row) -> Row:
    """A trial that its search has given up, with the last result as the end of a lost run."""
    results = (one.time for one in (row.last_validation, row.latest_checkpoint) if one is not None)
    known = [moment for moment in (row.started, *results) if moment is not None]
    if row.ended is None and known:
        row = msgspec.structs.replace(row, ended=max(known))
    if isinstance(row, TrialView) and row.runs and row.runs[-1].outcome is None:
        run = msgspec.structs.replace(row.runs[-1], outcome=LOST, ended=row.ended)
        row = msgspec.structs.replace(row, runs=(*row.runs[:-1], run))
    return row


@dataclass(frozen=True)
class RungView:
    """One rung: how many trials have a result there, how many are on their way, the best."""

    bracket: int
    rung: int
    units: int
    trials: int
    outstanding: int
    best: float | None
    best_trial: int | None


class SearchView:
    """The search of one experiment, folded to the end of its log, or to an event that was lost."""

    def __init__(self, directory: ExperimentDir, facts: ExperimentFacts) -> None:
        self._search = Search(directory.config())
        self._log: EventLog[State] = EventLog(directory.search, self._search)
        self._cluster = facts.cluster
        self._ids: Sequence[int] = ()
        self._indices: dict[int, int] = {}
        self._assignments: list[_Assignment] = []
        self._shares: dict[int, float] = {}  # by index, of the trials that were refined last
        self.refresh(facts)

    def refresh(self, facts: ExperimentFacts) -> None:
        """Fold in new events, up to a lost event."""
        self._ids = facts.trial_ids
        self._indices = {number: index for index, number in enumerate(self._ids)}
        self.problems: tuple[Problem, ...] = ()
        try:
            self._log.catch_up()
        except (NewerFormat, RecordMissing) as error:
            self.problems = (Problem(error.path, 0, error.problem),)

    def moved(self) -> list[int]:
        """The trials that were created, assigned, given back or closed since the last call; the log
        of their runs before that can be read by now."""
        before = self._assignments
        self._assignments = [_assignment(trial) for trial in self.state.trials]
        pairs = zip_longest(before, self._assignments)
        changed = (index for index, (old, new) in enumerate(pairs) if old != new)
        return [self._ids[index] for index in changed if index < len(self._ids)]

    @property
    def state(self) -> State:
        """The fold itself."""
        return self._log.state

    @property
    def name(self) -> str:
        """The searcher's name."""
        return self._search.name

    @property
    def unit(self) -> str:
        """The unit of lengths, if the configuration names any."""
        return self._search.time_metric or self._search.unit or "units"

    @property
    def progress(self) -> float:
        """The completed part of the search, 0 to 1, with what the refined rows know."""
        return self._search.progress(self.state, self._shares)

    @property
    def created_ids(self) -> Sequence[int]:
        """The ids of all trials that the search has created."""
        return self._ids[: self.state.created]

    @property
    def open_ids(self) -> list[int]:
        """The ids of those that it has not closed."""
        pairs = zip(self._ids, self.state.trials, strict=False)
        return [number for number, trial in pairs if trial.status != "closed"]

    def trial(self, trial_id: int) -> SearchTrial | None:
        """A trial as the search sees it; None where it has not created it."""
        index = self._indices.get(trial_id, self.state.created)
        return self.state.trials[index] if index < self.state.created else None

    def job_refs(self) -> dict[int, JobRef]:
        """Trial id -> the job that works at it."""
        ids = self.created_ids
        return {
            ids[index]: JobRef(self._cluster, worker)
            for worker, index in self.state.assigned().items()
            if index < len(ids)
        }

    def refine(self, row: Row, *, paused: bool) -> Row:
        """The row, with what only the search knows: whether the trial is over, paused or waits,
        and which part it has done of what the search wants of it."""
        trial = self.trial(row.id)
        if trial is None or row.state in FINISHED:
            return row
        if trial.status == "closed":
            state = TERMINAL.get(trial.outcome or "", "COMPLETED")
            if state == "ERROR":
                return _with_lost_run(msgspec.structs.replace(row, state=state))
            progress = 1.0 if state == "COMPLETED" else row.progress
            return msgspec.structs.replace(row, state=state, progress=progress)
        row = self._with_progress(row, trial.target_length)
        if paused:
            return row
        return msgspec.structs.replace(row, state=_STATES.get(trial.status, row.state))

    def _with_progress(self, row: Row, target_length: int | None) -> Row:
        if not row.progress:
            steps, metric = row.steps, self._search.time_metric
            if metric is not None and row.last_validation is not None:
                steps = row.last_validation.metrics.get(metric, steps)
            if isinstance(steps, (int, float)):
                row = msgspec.structs.replace(row, progress=trained_share(steps, target_length))
        self._shares[self._indices[row.id]] = row.progress
        return row

    @property
    def end_reason(self) -> str | None:
        """Which rule of `searcher.stop` has ended it; None if none has."""
        return self._search.end_reason(self.state, self._ids)

    def counts(self) -> dict[str, int]:
        """How many trials wait, run, are paused at a rung, are closed, had invalid samples."""
        found = Counter(trial.status for trial in self.state.trials)
        return {
            "created": self.state.created,
            "waiting": found["waiting"],
            "running": found["assigned"],
            "paused": found["paused"],
            "closed": found["closed"],
            "invalid": self.state.invalid,  # of those that are closed
        }

    @property
    def known(self) -> str | None:
        """How many results of earlier experiments it began with; None where it began with none."""
        if self.state.known is None:
            return None
        from detslurm.searcher.known import summary  # only here: few searches begin with any

        return summary(self.state.known)

    def rungs(self) -> list[RungView]:
        """All rungs of all brackets, lowest first."""
        return [
            self._rung(number, level)
            for number, bracket in enumerate(self.state.brackets)
            for level in range(len(bracket.rungs))
        ]

    def _rung(self, number: int, level: int) -> RungView:
        rung = self.state.brackets[number].rungs[level]
        best = trial = None
        if self._search.compares_one and rung.results and math.isfinite(rung.results[0][0]):
            score, _, index = rung.results[0]
            best = score if self._search.smaller_is_better else -score
            trial = self._ids[index] if index < len(self._ids) else None
        return RungView(number, level, rung.units, len(rung.results), rung.outstanding, best, trial)

    def data(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "name": self.name,
            "unit": self.unit,
            "done": self.state.done,
            "verdict": self.state.verdict,
            "end_reason": self.end_reason,
            "progress": self.progress,
            "decisions": self._log.position,
            "known": self.known,
            "trials": self.counts(),
            "brackets": [
                {
                    "max_trials": bracket.max_trials,
                    "created": bracket.created,
                    "invalid": bracket.invalid,
                    "rungs": [
                        {name: getattr(rung, name) for name in _OF_A_RUNG}
                        for rung in self.rungs()
                        if rung.bracket == number
                    ],
                }
                for number, bracket in enumerate(self.state.brackets)
            ],
        }

    def trial_data(self, trial_id: int) -> dict[str, Any] | None:
        """One trial as the search knows it, for JSON."""
        trial = self.trial(trial_id)
        if trial is None:
            return None
        return {
            "status": trial.status,
            "worker": trial.worker,
            "target_length": trial.target_length,
            "reached": trial.reached,
            "bracket": trial.bracket if self.state.brackets else None,
            "rung": trial.rung if self.state.brackets else None,
            "runs": trial.fencing_token,
            "stop": trial.stop,
            "outcome": trial.outcome,
        }
