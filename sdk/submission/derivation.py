"""Where the trials of a new experiment begin that comes from another experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from detslurm.store import ExperimentDir, TrialDir, trial_metrics
from detslurm.store.history import write_history
from detslurm.store.run_records import Continued


@dataclass(frozen=True)
class Begin:
    """Where a trial goes on: the trial that it continues, and what it has from it."""

    source: TrialDir
    continued: Continued


@dataclass(frozen=True)
class Derivation:
    """The source of a new experiment, its kind, and the start of its trials (by index)."""

    parent: int
    origin: str
    begins: Mapping[int, Begin]

    def prepare(self, experiment: ExperimentDir, first_trial: int) -> None:
        """Give the trials their histories, before anybody sees the experiment."""
        for index, begin in self.begins.items():
            trial = experiment.trial(first_trial + index)
            write_history(trial, begin.continued, trial_metrics(begin.source))
