"""Where the trials of a new experiment begin that comes from another experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detslurm.searcher import Search, State
from detslurm.store import EventLog, ExperimentDir, TrialDir, trial_metrics, write_history
from detslurm.store.run_records import Continued


@dataclass(frozen=True)
class Past:
    """A trial's runs in the other experiment, shown as a single run of the new trial.

    Its outcome is terminal if that trial does not go on."""

    outcome: str
    reason: str


@dataclass(frozen=True)
class Begin:
    """Where a trial goes on: the trial that it continues, and what it has from it."""

    source: TrialDir
    continued: Continued
    past: Past | None = None  # in a search, which need not run the trial again


@dataclass(frozen=True)
class Derivation:
    """The source of a new experiment, its kind, and the start of its trials (by index). `extended`
    is the event with which its search goes on."""

    parent: int
    origin: str
    begins: Mapping[int, Begin]
    extended: Mapping[str, Any] | None = None

    def prepare(self, experiment: ExperimentDir, first_trial: int) -> None:
        """Give the trials their histories, before anybody sees the experiment."""
        for index, begin in self.begins.items():
            trial = experiment.trial(first_trial + index)
            # A run that resumes from the checkpoint cuts off what was reported after it.
            until = None if begin.past is not None else begin.continued.steps
            write_history(trial, begin.continued, trial_metrics(begin.source), until)
            if begin.past is not None:
                _show_past(trial, index, begin.continued, begin.past)
        if self.extended is not None:
            search = Search(experiment.config())
            log: EventLog[State] = EventLog(experiment.search, search)
            log.commit([dict(self.extended)])
            log.save()  # a long search is read once, not by each of its processes


def _show_past(trial: TrialDir, index: int, continued: Continued, past: Past) -> None:
    start = trial.open_run(
        {
            "trial": trial.id,
            "experiment": trial.experiment_id,
            "index": index,
            "hparams": continued.hparams,
            "seed": continued.seed,
            "continued": continued.as_claimed(),
        }
    )
    trial.write_end(start.run, {"outcome": past.outcome, "reason": past.reason})
