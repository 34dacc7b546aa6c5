"""Halving by stopping: no trial pauses; a trial outside of the best 1/divisor is stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detslurm.searcher.events import Validated
from detslurm.searcher.halving.brackets import BracketPlan
from detslurm.searcher.halving.method import Halving
from detslurm.searcher.halving.model import ResultModel
from detslurm.searcher.method import length_of
from detslurm.searcher.state import PROMOTED, Bracket, State


class Stopping(Halving):
    """A trial goes on or is stopped, once, at the first report at or beyond each rung."""

    judges_reports = True

    def __init__(
        self,
        searcher: Mapping[str, Any],
        brackets: Sequence[BracketPlan],
        model: ResultModel | None = None,
    ) -> None:
        # Two generations: with max_length a trial is asked for one rung after the other, and
        # the earlier of two equals is ahead; with max_time it trains freely, and the later is.
        self.asks = length_of(searcher)[0] is not None
        super().__init__(searcher, brackets, model, before_equals=not self.asks)

    def target_length(self, bracket: Bracket, rung: int) -> int | None:
        return bracket.rungs[rung].units if self.asks else None

    def validated(self, state: State, index: int, units: int, event: Validated) -> None:
        trial = state.trials[index]
        bracket = state.brackets[trial.bracket]
        if units < bracket.rungs[trial.rung].units:
            return
        trial.reached = max(trial.reached, units)
        self.note(trial, event)
        compared = self.ranking.compared(event.metric, event.metrics)
        while not trial.stop and units >= bracket.rungs[trial.rung].units:
            self._judge(state, index, compared)
        if trial.stop:
            self.create(state, trial.bracket)

    def _judge(self, state: State, index: int, compared: Any) -> None:
        """The trial stops at its rung, or goes on to the next."""
        trial = state.trials[index]
        bracket, level = state.brackets[trial.bracket], trial.rung
        place = self.enter(state, index, compared)
        if level == len(bracket.rungs) - 1:
            trial.stop = trial.final = True
        elif compared == self.ranking.worst or place >= max(
            int(len(bracket.rungs[level].results) / self.divisor), 1
        ):
            trial.stop = True
        else:
            self._go_on(state, index)

    def _go_on(self, state: State, index: int) -> None:
        trial = state.trials[index]
        bracket = state.brackets[trial.bracket]
        trial.rung += 1
        bracket.rungs[trial.rung].outstanding += 1
        trial.target_length = self.target_length(bracket, trial.rung)

    def reopen(self, state: State, number: int, top: int) -> None:
        """The best of what was the last rung go on; a trial that was stopped stays so."""
        bracket = state.brackets[number]
        for index in self.best(bracket.rungs[top]) if len(bracket.rungs) > top + 1 else ():
            if state.trials[index].outcome == "completed" and state.trials[index].final:
                state.reopen(index)
                self._go_on(state, index)
                state.enqueue(index, PROMOTED)

    def paused(self, state: State, index: int) -> None:
        # All rungs are behind a settled trial, or it would have been asked for the next.
        state.finish(index)

    def ended(self, state: State, index: int) -> None:
        """A trial that ends below its top rung is the worst there; another one begins."""
        self.enter(state, index, self.ranking.worst)
        self.create(state, state.trials[index].bracket)

    def refused(self, state: State, index: int) -> None:
        self.withdraw(state, index)

    def next_report(self, state: State, index: int) -> int | None:
        trial = state.trials[index]
        return state.brackets[trial.bracket].rungs[trial.rung].units
