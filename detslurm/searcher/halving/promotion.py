"""Halving by promotion: a trial pauses at each rung until it is among the best 1/divisor there."""

from __future__ import annotations

from typing import Any

from detslurm.searcher.events import WORST, Validated
from detslurm.searcher.halving.method import Halving
from detslurm.searcher.state import PROMOTED, Bracket, State


class Promotion(Halving):
    """With each result a trial is promoted, or a new one begins."""

    raises_targets = True

    def validated(self, state: State, index: int, units: int, event: Validated) -> None:
        if self.arrived(state, index, units, event):
            self._judge(state, index, self.ranking.compared(event.metric, event.metrics))

    def ended(self, state: State, index: int) -> None:
        trial = state.trials[index]
        if len(trial.rung_results) <= trial.rung:
            self._judge(state, index, self.ranking.worst)

    def refused(self, state: State, index: int) -> None:
        self.withdraw(state, index)
        number = state.trials[index].bracket
        bracket = state.brackets[number]
        for level in range(len(bracket.rungs) - 1):
            self._promote_next(state, bracket, level)
        self._let_go(state, bracket)

    def extend(self, state: State) -> None:
        super().extend(state)
        for bracket in state.brackets:
            self._let_go(state, bracket)

    def reopen(self, state: State, number: int, top: int) -> None:
        """Those pause again that were let go, and the best of what was the last rung go on."""
        bracket = state.brackets[number]
        longer = len(bracket.rungs) > top + 1
        for index, trial in enumerate(state.trials):
            if trial.bracket != number or not trial.final or (trial.rung == top and not longer):
                continue
            # One that has diverged was promoted to a rung that it never reached.
            if trial.reached >= bracket.rungs[trial.rung].units:
                trial.final = False
                if trial.outcome == "completed":
                    state.reopen(index)
        for index in self.best(bracket.rungs[top]) if longer else ():
            self._promote(state, index)

    def _judge(self, state: State, index: int, compared: Any) -> None:
        number = state.trials[index].bracket
        if not self._settle(state, index, compared):
            self.create(state, number)
        self._let_go(state, state.brackets[number])

    def _settle(self, state: State, index: int, compared: Any) -> bool:
        """Enter a result; whether any trial was promoted by it."""
        trial = state.trials[index]
        bracket, level = state.brackets[trial.bracket], trial.rung
        place = self.enter(state, index, compared)
        if level == len(bracket.rungs) - 1:
            if trial.status != "closed":
                state.finish(index)
            return False
        if place < int(len(bracket.rungs[level].results) / self.divisor):
            return self._promote(state, index)
        return self._promote_next(state, bracket, level)

    def _promote_next(self, state: State, bracket: Bracket, level: int) -> bool:
        """Promote the first of the best that was not promoted before."""
        rung, above = bracket.rungs[level], bracket.rungs[level + 1]
        best = int(len(rung.results) / self.divisor)
        promoted = len(above.results) + above.outstanding
        found = self.ranking.newly_best(rung, best, promoted) if best else ()
        paused = (one for one in found if state.trials[one].rung == level)
        index = next((one for one in paused if not state.trials[one].final), None)
        return index is not None and self._promote(state, index)

    def _promote(self, state: State, index: int) -> bool:
        trial = state.trials[index]
        if trial.final:
            return False
        bracket = state.brackets[trial.bracket]
        if trial.status != "closed" and trial.rung_results[trial.rung][0] == WORST:
            state.finish(index)  # it has diverged: no more of it is trained
        trial.rung += 1
        bracket.rungs[trial.rung].outstanding += 1
        if trial.final or trial.status == "closed":  # so it fails on the next rung: room is made
            return self._settle(state, index, self.ranking.worst)
        units = bracket.rungs[trial.rung].units
        if units <= trial.reached:  # short lengths have rungs of equal length: it is there already
            compared = self.ranking.compared(trial.metric, trial.metrics)
            return self._settle(state, index, compared)
        trial.target_length = units
        if trial.status == "paused":
            state.enqueue(index, PROMOTED)
        return True

    def _let_go(self, state: State, bracket: Bracket) -> None:
        """Close who can't be promoted any more: nothing is on its way to the rung, or below."""
        if self.may_create(bracket):
            return
        while bracket.lowest < len(bracket.rungs):
            rung = bracket.rungs[bracket.lowest]
            if rung.outstanding:
                return
            for _, _, index in rung.results:
                trial = state.trials[index]
                if trial.rung == bracket.lowest and trial.status != "closed" and not trial.final:
                    state.finish(index)
            bracket.lowest += 1
