"""What the user wants now, and what else a worker learns from the experiment's facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detslurm.exec.outcome import Cause
from detslurm.store import ExperimentDir


class Intents:
    """Follows the facts of an experiment; the strongest intent wins."""

    def __init__(self, experiment: ExperimentDir) -> None:
        self.experiment = experiment
        self.created: Mapping[str, Any] = {}
        self.trial_ids: list[int] = []
        self.replaced: dict[int, int] = {}  # index of an invalid trial -> its replacement's
        self.lost: set[int] = set()  # trials that were declared dead
        self.adopted: dict[int, str] = {}  # index of a trial -> the job that took it over
        self.over = False  # the search has ended
        self.last_fact = 0
        self._paused = self._canceled = self._killed = False
        self._killed_trials: set[int] = set()

    def mark_found(self, trial_id: int) -> None:
        """Record that a trial that was declared dead is alive, as after a requeue by hand."""
        if trial_id in self.lost:
            self.experiment.append({"type": "found", "trials": [trial_id]}, self.last_fact)

    def refresh(self) -> None:
        """Fold in the facts that are new."""
        for fact in self.experiment.facts(after=self.last_fact):
            self.last_fact = fact["n"]
            self._take(fact)

    def _take(self, fact: Mapping[str, Any]) -> None:
        kind = fact.get("type")
        if kind == "intent":
            self._on_intent(fact)
        elif kind == "search_ended":
            self.over = True
        elif kind == "created":
            self.created = fact
        elif kind == "lost":
            self.lost |= set(fact["trials"])
        elif kind == "found":
            self.lost -= set(fact["trials"])
        if kind in ("created", "trials"):
            self._trials(fact)
        for job in fact.get("jobs") or ():
            self._submitted(job)

    def _submitted(self, job: Mapping[str, Any]) -> None:
        first = job.get("first_index", 0)
        share = range(first, first + job.get("count", 1))
        self.lost -= set(self.trial_ids[share.start : share.stop])
        self.adopted = {index: ref for index, ref in self.adopted.items() if index not in share}
        if job.get("adopted"):
            self.adopted |= dict.fromkeys(share, job["job_id"])

    def _trials(self, fact: Mapping[str, Any]) -> None:
        if "replaces" in fact:
            self.replaced.setdefault(fact["replaces"], len(self.trial_ids))
        first, count = fact["first_trial"], fact["trials"]
        self.trial_ids.extend(range(first, first + count))

    def _on_intent(self, fact: Mapping[str, Any]) -> None:
        intent = fact.get("intent")
        if intent in ("pause", "activate"):
            self._paused = intent == "pause"
        elif intent == "cancel":
            self._canceled = True
        elif intent in ("kill", "delete"):
            self._killed = True
        elif intent == "kill_trial":
            self._killed_trials.add(fact.get("trial", 0))

    @property
    def cause(self) -> Cause | None:
        """Why nothing of the experiment should run now, or None."""
        if self._killed:
            return Cause.KILL
        if self._canceled:
            return Cause.CANCEL
        return Cause.PAUSE if self._paused else None

    def cause_for(self, trial_id: int) -> Cause | None:
        """Why this trial should not run now, or None."""
        return Cause.KILL if trial_id in self._killed_trials else self.cause
