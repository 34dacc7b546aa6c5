"""The user's wishes of now, and other facts of the experiment that a worker needs."""

from __future__ import annotations

from detslurm.exec.outcome import Cause
from detslurm.store import ExperimentDir, ExperimentFacts
from detslurm.store.records import Found


class Intents:
    """Follows the facts of an experiment; the strongest intent wins."""

    def __init__(self, experiment: ExperimentDir) -> None:
        self.experiment = experiment
        self.facts = ExperimentFacts()

    def refresh(self) -> None:
        """Fold in the facts that are new."""
        self.facts.fold(self.experiment.facts(after=self.facts.count))

    def mark_found(self, trial_id: int) -> None:
        """Record that a trial that was declared dead is alive, as after a requeue by hand."""
        if trial_id in self.facts.lost:
            self.experiment.append(Found(trials=(trial_id,)), self.facts.count)

    @property
    def cause(self) -> Cause | None:
        """Why nothing of the experiment should run now, or None."""
        desired = self.facts.desired
        if desired.deleted or desired.stopping == "kill":
            return Cause.KILL
        if desired.stopping is not None:
            return Cause.CANCEL
        return Cause.PAUSE if desired.paused else None

    def cause_for(self, trial_id: int) -> Cause | None:
        """Why this trial should not run now, or None."""
        return Cause.KILL if trial_id in self.facts.desired.killed_trials else self.cause
