"""single, random and grid: no trial depends on another's results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detslurm.searcher.events import Validated
from detslurm.searcher.method import Method, length_of, may_replace
from detslurm.searcher.state import PROMOTED, State


class IndependentTrials(Method):
    """`max_trials` trials, `max_concurrent_trials` at first, one more whenever one closes."""

    def __init__(self, searcher: Mapping[str, Any], max_trials: int) -> None:
        super().__init__(searcher)
        self.max_trials = max_trials
        self.at_once: int = searcher.get("max_concurrent_trials", 16) or max_trials
        self.replaces = searcher["name"] == "random"
        self.target_length, _ = length_of(searcher)

    def start(self, state: State) -> None:
        for _ in range(min(self.at_once, self.max_trials)):
            self.new(state, self.target_length)

    def extend(self, state: State) -> None:
        """More trials begin; with a longer length, those that were completed train on."""
        longer = self.target_length or 0
        for index, trial in enumerate(state.trials):
            if trial.target_length is not None and trial.target_length < longer:
                trial.target_length = longer
                if trial.outcome == "completed":
                    self.train_on(state, index)
        while self.may_create(state) and state.open < self.at_once:
            self.new(state, self.target_length)

    def train_on(self, state: State, index: int) -> None:
        """Let a trial that was completed train to its longer length."""
        state.reopen(index)
        state.enqueue(index, PROMOTED)

    def validated(self, state: State, index: int, units: int, event: Validated) -> None:
        trial = state.trials[index]
        if units >= trial.reached:
            trial.reached = units
            self.note(trial, event)

    def closed(self, state: State, index: int) -> None:
        if self.may_create(state):
            self.new(state, self.target_length)

    def may_create(self, state: State) -> bool:
        """Whether there are trials left; invalid samples that are replaced don't count."""
        replaces = self.replaces and may_replace(state.invalid, self.max_trials)
        return state.created - (state.invalid if replaces else 0) < self.max_trials

    def progress(self, state: State, shares: Mapping[int, float]) -> float:
        share = 0.0
        for index, trial in enumerate(state.trials):
            if trial.status == "closed":
                share += trial.outcome != "invalid_hp"
            elif trial.target_length:
                share += max(min(trial.reached / trial.target_length, 1.0), shares.get(index, 0.0))
        return share / self.max_trials
