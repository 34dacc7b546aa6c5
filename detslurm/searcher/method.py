"""The interface of a search method: reactions to its trials' events, over the state's moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detslurm.searcher.events import Operations, Sampled, Validated, number, score
from detslurm.searcher.objectives import Objectives
from detslurm.searcher.optuna.history import TrialHistory
from detslurm.searcher.state import CREATED, SearchTrial, State

INVALID_FACTOR = 10
INVALID_FLOOR = 100


class Method:
    """The base of all methods; a method keeps nothing in itself, all that changes is the state."""

    raises_targets = False  # it may ask more of a trial that has done all it was asked for
    samples_late = False  # trials may lack hyperparameters until their worker asks a sampler
    judges_reports = False  # it judges what trials report on their way, wherever they are

    def __init__(self, searcher: Mapping[str, Any]) -> None:
        self.searcher = searcher
        self.smaller_is_better: bool = searcher.get("smaller_is_better", True)
        self.objectives = Objectives.of(searcher)

    def start(self, state: State) -> None:
        """Create the first trials."""
        raise NotImplementedError

    def extend(self, state: State) -> None:
        """Go on with an ended search of fewer trials, or shorter ones, whose state it is."""
        raise NotImplementedError

    def validated(self, state: State, index: int, units: int, event: Validated) -> None:
        """An open trial that was not stopped has reported a metric at `units`."""
        raise NotImplementedError

    def paused(self, state: State, index: int) -> None:
        """A trial left after it had reported all it was asked for: it is paused now."""
        if state.trials[index].final or not self.raises_targets:
            state.finish(index)

    def ended(self, state: State, index: int) -> None:
        """A trial closed before its target length: in order, in error or canceled."""

    def refused(self, state: State, index: int) -> None:
        """A trial closed because its hyperparameters are invalid."""

    def lacks_sample(self, trial: SearchTrial) -> bool:
        """Whether a sampler has yet to choose the hyperparameters of this trial."""
        return False

    def history(self, state: State) -> TrialHistory:
        """The history by which a sampler chooses hyperparameters."""
        return TrialHistory()

    def judged(self, state: State, index: int, event: dict[str, Any]) -> dict[str, Any]:
        """The `validated` event that is to be committed for a report."""
        return event

    def sampled(self, state: State, event: Sampled) -> None:
        """Hyperparameters have been chosen for a trial."""

    def operations(self, state: State, event: Operations) -> None:
        """A custom method has answered."""

    def closed(self, state: State, index: int) -> None:
        """A trial has closed, however."""

    def over(self, state: State) -> bool:
        """Whether the search has come to its end."""
        return not state.open

    def next_report(self, state: State, index: int) -> int | None:
        """The units from which a report of this trial can change anything; None: no report can."""
        return None

    def progress(self, state: State, shares: Mapping[int, float]) -> float:
        """The part of the search that is done, 0 to 1; `shares` as for `Search.progress`."""
        raise NotImplementedError

    def arrived(self, state: State, index: int, units: int, event: Validated) -> bool:
        """Whether a trial has reported at its target length for the first time: that is noted."""
        trial = state.trials[index]
        if trial.target_length is None or trial.settled or units < trial.target_length:
            return False
        trial.reached = trial.target_length
        self.note(trial, event)
        return True

    def note(self, trial: SearchTrial, event: Validated) -> None:
        """Keep what a trial reports."""
        trial.metric, trial.metrics = number(event.metric), event.metrics

    def score(self, metric: Any) -> float:
        """The metric as a number of which smaller is better."""
        return score(metric, self.smaller_is_better)

    def new(self, state: State, target_length: int | None = None, **fields: Any) -> int:
        """Create a trial that waits for a worker."""
        index = state.create(SearchTrial(target_length=target_length, **fields))
        state.enqueue(index, CREATED)
        return index


def may_replace(invalid: int, max_trials: int) -> bool:
    """Whether an invalid sample is replaced: a program that refuses all must come to an end."""
    return invalid <= max(INVALID_FLOOR, INVALID_FACTOR * max_trials)


def length_of(
    searcher: Mapping[str, Any], field: str = "max_length"
) -> tuple[int | None, str | None]:
    """The units and the unit of a length; None where it has none."""
    length = searcher.get(field)
    if isinstance(length, Mapping):
        given = {unit: units for unit, units in length.items() if units is not None}
        unit, units = next(iter(given.items()))
        return int(units) or None, unit
    return (int(length) or None if length is not None else None), None
