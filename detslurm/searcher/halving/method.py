"""Asynchronous halving, one or several brackets of it: what both forms share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detslurm.searcher.events import Sampled
from detslurm.searcher.halving.brackets import BracketPlan, longer_plans
from detslurm.searcher.halving.fronts import ByFronts
from detslurm.searcher.halving.model import ResultModel, lacks_sample
from detslurm.searcher.halving.rungs import ByMetric, Ranking
from detslurm.searcher.method import Method, may_replace
from detslurm.searcher.optuna.history import TrialHistory
from detslurm.searcher.state import Bracket, Rung, SearchTrial, State


class Halving(Method):
    """Brackets side by side; each creates its share of the trials and judges only those."""

    def __init__(
        self,
        searcher: Mapping[str, Any],
        brackets: Sequence[BracketPlan],
        model: ResultModel | None = None,
        *,
        before_equals: bool = False,
    ) -> None:
        super().__init__(searcher)
        self.model = model
        self.samples_late = model is not None
        self.brackets = brackets
        self.divisor: float = searcher.get("divisor", 4)
        self.ranking: Ranking = ByFronts(self.objectives)
        if self.objectives.single:
            self.ranking = ByMetric(self.smaller_is_better, before_equals)

    def start(self, state: State) -> None:
        state.brackets = [
            Bracket(max_trials=plan.max_trials, rungs=[Rung(units=u) for u in plan.units])
            for plan in self.brackets
        ]
        for number, plan in enumerate(self.brackets):
            for _ in range(min(plan.concurrency, plan.max_trials)):
                self.create(state, number)

    def extend(self, state: State) -> None:
        for number, plan in enumerate(longer_plans(self.searcher, state.brackets)):
            bracket = state.brackets[number]
            top = len(bracket.rungs) - 1
            bracket.rungs += [Rung(units=units) for units in plan.units[top + 1 :]]
            bracket.max_trials, bracket.lowest = plan.max_trials, 0
            self.reopen(state, number, top)
            while self.may_create(bracket) and bracket.outstanding < plan.concurrency:
                self.create(state, number)

    def reopen(self, state: State, number: int, top: int) -> None:
        """Take back the ends of a bracket's trials that may go on; `top` was its last rung."""
        raise NotImplementedError

    def best(self, rung: Rung) -> list[int]:
        """The trials that go on from what was the last rung: one at least that has not diverged."""
        count = max(int(len(rung.results) / self.divisor), 1)
        return self.ranking.best(rung, count)

    def create(self, state: State, number: int) -> None:
        """Create a trial in a bracket that has any left."""
        bracket = state.brackets[number]
        if self.may_create(bracket):
            bracket.created += 1
            bracket.lowest = 0
            bracket.rungs[0].outstanding += 1
            is_free = state.created >= len(self.searcher.get("first") or ())
            modelled = is_free and self.model is not None and self.model.chooses(state)
            length = self.target_length(bracket, 0)
            self.new(state, length, bracket=number, modelled=modelled)

    def lacks_sample(self, trial: SearchTrial) -> bool:
        return lacks_sample(trial)

    def history(self, state: State) -> TrialHistory:
        return self.model.history(state) if self.model is not None else TrialHistory()

    def sampled(self, state: State, event: Sampled) -> None:
        trial = state.trials[event.trial]
        if lacks_sample(trial) and trial.status != "closed":
            trial.hparams = event.hparams

    def may_create(self, bracket: Bracket) -> bool:
        """Whether the bracket has trials left; invalid samples don't count."""
        replaced = bracket.invalid if may_replace(bracket.invalid, bracket.max_trials) else 0
        return bracket.created - replaced < bracket.max_trials

    def target_length(self, bracket: Bracket, rung: int) -> int | None:
        """The request to a trial on its way to a rung."""
        return bracket.rungs[rung].units

    def enter(self, state: State, index: int, compared: Any) -> int:
        """A trial has its result in the rung it was on its way to; its place there."""
        trial = state.trials[index]
        rung = state.brackets[trial.bracket].rungs[trial.rung]
        rung.outstanding -= 1
        return self.ranking.enter(state, rung, index, compared)

    def withdraw(self, state: State, index: int) -> None:
        """Forget a trial with invalid hyperparameters; another takes its place."""
        trial = state.trials[index]
        bracket = state.brackets[trial.bracket]
        if len(trial.rung_results) <= trial.rung:
            bracket.rungs[trial.rung].outstanding -= 1
        self.ranking.remove(state, bracket.rungs, index)
        bracket.invalid += 1
        self.create(state, trial.bracket)

    def progress(self, state: State, shares: Mapping[int, float]) -> float:
        parts = [self._part(state, number) for number in range(len(state.brackets))]
        return sum(parts) / len(parts)

    def _part(self, state: State, number: int) -> float:
        bracket = state.brackets[number]
        judged = len(bracket.rungs[0].results)
        part = judged / (1.2 * bracket.max_trials)
        if judged >= bracket.max_trials:
            own = [t for t in state.trials if t.bracket == number]
            ended = sum(t.status == "closed" and t.outcome != "invalid_hp" for t in own)
            part = max(part, ended / bracket.max_trials)
        return min(part, 1.0)
