"""Population based training: rounds; after each, copies of the best take the place of the worst.

A copy is a new trial that starts from the checkpoint which its original left at the end of the
round, with hyperparameters nearby. Lengths are those of the population: a trial copied after two
rounds begins where two rounds end, and goes on to the end of the third.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detslurm.config.spaces import bounds, is_constant, is_group, place_among
from detslurm.searcher.events import WORST, Validated
from detslurm.searcher.hyperparameters import Sample, Space, draw
from detslurm.searcher.method import Method, length_of, may_replace
from detslurm.searcher.mt19937 import RandomStream
from detslurm.searcher.sampling import Samples
from detslurm.searcher.state import PROMOTED, SearchTrial, State

_NOTHING = (None, None)


class PBT(Method):
    """`population_size` members train side by side; a round ends with the last of their runs."""

    def __init__(self, searcher: Mapping[str, Any], space: Space, samples: Samples) -> None:
        super().__init__(searcher)
        self.space, self.samples = space, samples
        self.population: int = searcher["population_size"]
        self.rounds: int = searcher["num_rounds"]
        self.length: int = length_of(searcher, "length_per_round")[0] or 1
        fraction = (searcher.get("replace_function") or {}).get("truncate_fraction", 0.2)
        self.replaced = int(fraction * self.population + 1e-9)  # 0.29 of 100 is 29
        explore = searcher.get("explore_function") or {}
        self.resample: float = explore.get("resample_probability", 0.2)
        self.factor: float = explore.get("perturb_factor", 0.2)

    def start(self, state: State) -> None:
        state.members = [self.new(state, self.length) for _ in range(self.population)]

    def extend(self, state: State) -> None:
        """More rounds follow the last round: its members were closed, and are paused again."""
        for index in state.members:
            if state.trials[index].final and state.trials[index].outcome == "completed":
                state.reopen(index)
        self._end_round(state)

    def validated(self, state: State, index: int, units: int, event: Validated) -> None:
        self.arrived(state, index, units, event)

    def paused(self, state: State, index: int) -> None:
        self._end_round(state)

    def ended(self, state: State, index: int) -> None:
        self._end_round(state)

    def refused(self, state: State, index: int) -> None:
        """A member with invalid hyperparameters: another is made as it was."""
        if may_replace(state.invalid, self.population):
            trial, place = state.trials[index], state.members.index(index)
            state.members[place] = self._member(state, trial.source, trial.source_checkpoint)
        self._end_round(state)

    def _end_round(self, state: State) -> None:
        trials = [state.trials[i] for i in state.members]
        if not all(t.status == "closed" or (t.status == "paused" and t.settled) for t in trials):
            return
        last = state.round + 1 >= self.rounds
        scores = {i: self.score(state.trials[i].metric) for i in state.members}
        alive = []
        for index in sorted(scores, key=lambda i: (scores[i], i)):
            if state.trials[index].status == "paused":
                if last or scores[index] == WORST:
                    state.finish(index)
                else:
                    alive.append(index)
        if alive:
            state.round += 1
            self._replace(state, alive)

    def _replace(self, state: State, alive: list[int]) -> None:
        """Close the worst, copy the best into their places and those of the failed or diverged."""
        failed = self.population - len(alive)
        worst = max(min(self.replaced - failed, len(alive) - 1), 0)
        kept, given_up = alive[: len(alive) - worst], alive[len(alive) - worst :]
        found = [(i, state.trials[i].checkpoint) for i in kept]
        sources = [pair for pair in found if pair[1] is not None][: max(self.replaced, 1)]
        for index in given_up:
            state.finish(index)
        for index in kept:
            state.trials[index].target_length = self._target_length(state)
            state.enqueue(index, PROMOTED)
        copied = [sources[n % len(sources)] if sources else _NOTHING for n in range(failed + worst)]
        state.members = kept + [self._member(state, *source) for source in copied]

    def _target_length(self, state: State) -> int:
        return (state.round + 1) * self.length

    def _member(self, state: State, source: int | None, checkpoint: str | None) -> int:
        """A new member for this round: a copy of `source`, or a member that starts from nothing."""
        if source is None:
            return self.new(state, self._target_length(state))
        from detslurm.config.secret_values import masked_sample  # only here: others have no source

        explored = self._explored(state.created, self._sample(source, state.trials[source]))
        return self.new(
            state,
            self._target_length(state),
            reached=state.round * self.length,
            source=source,
            source_checkpoint=checkpoint,
            hparams=masked_sample(explored, self.space),
        )

    def _sample(self, index: int, trial: SearchTrial) -> Sample:
        return self.samples.plan(index).hparams if trial.hparams is None else trial.hparams

    def _explored(self, index: int, sample: Sample) -> Sample:
        # A stream of its own, so that it depends on the seed and the order of creation alone.
        stream = RandomStream(self.samples.plan(index).seed)
        return explore(self.space, sample, stream, self.resample, self.factor)

    def progress(self, state: State, shares: Mapping[int, float]) -> float:
        target = self._target_length(state)
        done = sum(min(state.trials[i].reached / target, 1.0) for i in state.members)
        return (state.round + 1) / self.rounds * done / self.population


def explore(
    space: Space, sample: Sample, stream: RandomStream, resample: float, factor: float
) -> Sample:
    """A new sample near `sample`: each value is drawn again with probability `resample`, else
    numbers are multiplied by 1 + factor or 1 - factor, within their range. A choice that is not
    drawn again keeps its val, whose own values change in the same way."""
    return {
        key: _explore_one(space[key], sample[key], stream, resample, factor)
        for key in sorted(space)
    }


def _explore_one(
    spec: Any, value: Any, stream: RandomStream, resample: float, factor: float
) -> Any:
    if is_group(spec):
        return explore(spec, value, stream, resample, factor)
    if is_constant(spec):
        return value
    place = place_among(spec["vals"], value) if spec["type"] == "choice" else 0
    if stream.uniform(0.0, 1.0) < resample or place is None:
        return draw({"": spec}, stream)[""]
    if spec["type"] == "choice":
        return _explore_one(spec["vals"][place], value, stream, resample, factor)
    if spec["type"] == "categorical":
        return value
    return _shaken(spec, value * (1 + factor if stream.below(2) else 1 - factor))


def _shaken(spec: Mapping[str, Any], value: float) -> Any:
    low, high = bounds(spec)
    value = min(max(value, low), high)
    return round(value) if spec["type"] == "int" else value
