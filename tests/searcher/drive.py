"""Workers for tests of search methods: they ask, train, report and leave, one event at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from detslurm.searcher import Search, State
from detslurm.searcher.optuna.bridge import Bridge

SPACE = {"x": {"type": "double", "minval": 0.0, "maxval": 1.0}}
Metric = Callable[[int, int], Any]
"""A trial's metric by its index and the length it has reached."""


def search(name: str, space: dict[str, Any] | None = None, seed: int = 0, **fields: Any) -> Search:
    """The search of an experiment with these fields of the searcher."""
    searcher = {"name": name, "metric": "loss", **fields}
    return Search(
        {
            "searcher": searcher,
            "hyperparameters": SPACE if space is None else space,
            "reproducibility": {"experiment_seed": seed},
        }
    )


def ask(search: Search, state: State, worker: str = "w") -> int | None:
    """A worker asks for a trial."""
    search.apply(state, [{"e": "work_requested", "worker": worker}])
    return state.assignment(worker)


def take(search: Search, state: State, worker: str = "w") -> int:
    """A worker gets a trial."""
    index = ask(search, state, worker)
    assert index is not None, "nothing waits"
    return index


def take_sampled(search: Search, state: State) -> int:
    """A worker gets a trial, for which a fresh process asks Optuna; what is in the log is JSON."""
    index = take(search, state)
    bridge = Bridge(search.searcher, search.space, search.seed)
    events = bridge.suggest(search.history(state), search.unsampled(state))
    search.apply(state, json.loads(json.dumps(events)))
    return index


def begun(search: Search, workers: int) -> State:
    """A search of which the workers w0, w1, ... have asked for a trial each."""
    state = search.initial()
    for number in range(workers):
        ask(search, state, f"w{number}")
    return state


def to_end(search: Search, state: State) -> Iterator[int]:
    """The trials that a worker takes, one after the other, until the search is over."""
    while not state.done:
        yield take(search, state)


def report(search: Search, state: State, index: int, length: int, metric: Any, **more: Any) -> None:
    """A trial's chief reports a metric."""
    event = {"e": "validated", "trial": index, "length": length, "metric": metric, **more}
    search.apply(state, [event])


def leave(search: Search, state: State, index: int, how: str, **more: Any) -> None:
    """The worker of a trial says how its run ended."""
    worker = state.trials[index].worker
    search.apply(
        state, [{"e": "run_ended", "trial": index, "worker": worker, "outcome": how, **more}]
    )


def train(search: Search, state: State, index: int, metric: Metric, top: int = 0) -> None:
    """Train an assigned trial until nothing more is asked of it, then leave.

    Without a target length it reports wherever its reports matter, to `top` at most.
    """
    trial = state.trials[index]
    while not trial.stop and not trial.settled:
        target = trial.target_length or search.next_report(state, index)
        if target is None or (trial.target_length is None and target > top):
            break
        report(search, state, index, target, metric(index, target))
        if trial.reached < target:
            break
    leave(search, state, index, "out_of_ops", checkpoint=f"c{index}-{trial.reached}")


def run(search: Search, metric: Metric, workers: int = 1, top: int = 0) -> State:
    """The whole search by some workers in turns; every trial trains as far as it is asked to."""
    state = search.initial()
    for turn in range(100_000):
        if state.done:
            return state
        taken = [ask(search, state, f"w{n}") for n in range(workers)]
        assert any(index is not None for index in taken), "nothing waits, but it isn't over"
        for index in taken:
            if index is not None:
                train(search, state, index, metric, top)
        assert turn < 99_999, "the search does not end"
    return state


def reached(state: State) -> list[int]:
    """How far each trial trained."""
    return [trial.reached for trial in state.trials]
