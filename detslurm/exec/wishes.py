"""What the user wants of a trial now: a fold over the experiment's facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from detslurm.exec.outcome import Cause


class Wishes:
    """Follows the facts of an experiment for one trial; the strongest wish wins."""

    def __init__(self, trial_id: int) -> None:
        self._trial_id = trial_id
        self._paused = self._canceled = self._killed = False
        self.seen = 0

    def take(self, facts: Iterable[Mapping[str, Any]]) -> None:
        """Fold in further facts, in order."""
        for fact in facts:
            self.seen = max(self.seen, fact["n"])
            if fact.get("type") == "wish":
                self._wish(fact)

    def _wish(self, fact: Mapping[str, Any]) -> None:
        wish = fact.get("wish")
        if wish in ("pause", "activate"):
            self._paused = wish == "pause"
        elif wish == "cancel":
            self._canceled = True
        elif wish in ("kill", "delete") or (
            wish == "kill_trial" and fact.get("trial") == self._trial_id
        ):
            self._killed = True

    @property
    def cause(self) -> Cause | None:
        """Why this trial should not run now, or None."""
        if self._killed:
            return Cause.KILL
        if self._canceled:
            return Cause.CANCEL
        return Cause.PAUSE if self._paused else None
