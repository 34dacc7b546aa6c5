"""Write a search method of your own: what happens comes in as calls, operations go out.

A method is an object with state. A runner (`LocalSearchRunner`, `RemoteSearchRunner`) feeds it the
events of its experiment in order, saves it, and only then acts on its answers; so a method may be
killed at any moment and goes on from what it saved last.
"""

from __future__ import annotations

import abc
import enum
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from detslurm.searcher.operations import Operation, Progress

_STATE_FILE = "searcher_state.json"


class ExitedReason(enum.Enum):
    """Why a trial ended before the method closed it: it failed after all its restarts (`ERRORED`),
    the user ended it (`USER_CANCELED`), or its code declared its hyperparameters invalid
    (`INVALID_HP`)."""

    ERRORED = "ERRORED"
    USER_CANCELED = "USER_CANCELED"
    INVALID_HP = "INVALID_HP"


class SearcherState(msgspec.Struct, rename="camel"):
    """The facts about a search that every method may need; the runner passes it to each call.

    `trials_created`, `trials_closed` and `failures` name trials, `trial_progress` has the trained
    share of each trial's length, `last_event_id` is the number of the last handled event. A search
    that is over has `experiment_completed` or `experiment_failed`. By default nothing has happened.
    """

    failures: set[UUID] = set()
    trial_progress: dict[UUID, float] = {}
    trials_closed: set[UUID] = set()
    trials_created: set[UUID] = set()
    last_event_id: int = 0
    experiment_completed: bool = False
    experiment_failed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True, order="sorted")
        return plain

    def from_dict(self, d: Mapping[str, Any]) -> None:
        """Restore the state from `d`, the plain data of `to_dict()`."""
        state = msgspec.convert(d, SearcherState, str_keys=True)
        for name in self.__struct_fields__:
            setattr(self, name, getattr(state, name))


class SearchMethod(abc.ABC):
    """The base of a search method of your own.

    Its handlers get `searcher_state`, the known state of the search, and the name of a trial, its
    `request_id`; they return the operations that they ask for. They are called in the order of the
    events. The runner saves the method before its operations take effect, to a directory `path`.
    """

    @abc.abstractmethod
    def initial_operations(self, searcher_state: SearcherState) -> list[Operation]:
        """Return the operations that the search begins with."""

    @abc.abstractmethod
    def on_trial_created(self, searcher_state: SearcherState, request_id: UUID) -> list[Operation]:
        """Return the operations after a trial was created."""

    @abc.abstractmethod
    def on_validation_completed(
        self, searcher_state: SearcherState, request_id: UUID, metric: Any, train_length: int
    ) -> list[Operation]:
        """Return the operations after a trial has trained to `train_length`, in the search's unit.
        The `metric` is its value for `report_completed()`: anything that JSON can express."""

    @abc.abstractmethod
    def on_trial_closed(self, searcher_state: SearcherState, request_id: UUID) -> list[Operation]:
        """Return the operations after a trial has closed."""

    @abc.abstractmethod
    def progress(self, searcher_state: SearcherState) -> float:
        """Return the share of the search that is done, from 0 to 1."""

    @abc.abstractmethod
    def on_trial_exited_early(
        self, searcher_state: SearcherState, request_id: UUID, exited_reason: ExitedReason
    ) -> list[Operation]:
        """Return the operations after a trial has ended early, for an `exited_reason`."""

    def on_search_extended(self, searcher_state: SearcherState) -> list[Operation]:
        """Return the operations with which a search goes on that has ended.

        A method that lacks this does not consent: its search is never continued. Closed trials stay
        closed; new trials may start from their checkpoints.
        """
        raise NotImplementedError

    def save(self, searcher_state: SearcherState, path: Path, *, experiment_id: int) -> None:
        """Save the state of the search `experiment_id`, and the method's own."""
        content = {**searcher_state.to_dict(), "experimentId": experiment_id}
        path.joinpath(_STATE_FILE).write_text(json.dumps(content))
        self.save_method_state(path)

    @abc.abstractmethod
    def save_method_state(self, path: Path) -> None:
        """Save the method's own state."""

    def load(self, path: Path) -> tuple[SearcherState, int]:
        """Return the search's state and the id of its experiment, as `save()` has saved them."""
        content = json.loads(path.joinpath(_STATE_FILE).read_text())
        state = SearcherState()
        state.from_dict(content)
        self.load_method_state(path)
        return state, int(content["experimentId"])

    @abc.abstractmethod
    def load_method_state(self, path: Path) -> None:
        """Load the state that `save_method_state()` has saved."""


def answer(method: SearchMethod, state: SearcherState, event: Mapping[str, Any]) -> list[Operation]:
    """A method's answer to one event of its search's log; `state` is kept in step with it."""
    kind = event["event"]
    state.last_event_id = event["id"]
    if kind == "initial_operations":
        return method.initial_operations(state)
    if kind == "search_extended":
        state.experiment_completed = state.experiment_failed = False
        return [*method.on_search_extended(state), Progress(method.progress(state))]
    trial = UUID(event["request_id"])
    if kind == "trial_created":
        state.trials_created.add(trial)
        state.trial_progress[trial] = 0.0
        return method.on_trial_created(state, trial)
    operations = _after(method, state, kind, trial, event)
    return [*operations, Progress(method.progress(state))]


def _after(
    method: SearchMethod, state: SearcherState, kind: str, trial: UUID, event: Mapping[str, Any]
) -> list[Operation]:
    """The answer to what changes how far the search is."""
    if kind == "validation_completed":
        metric = event.get("metric")
        if metric is None:
            raise RuntimeError(f"trial {trial} completed a validation without a metric")
        return method.on_validation_completed(state, trial, metric, int(event["length"]))
    if kind == "trial_closed":
        state.trials_closed.add(trial)
        return method.on_trial_closed(state, trial)
    if kind == "trial_exited_early":
        reason = ExitedReason(event["reason"])
        if reason is ExitedReason.INVALID_HP:
            state.trial_progress.pop(trial, None)
        elif reason is ExitedReason.ERRORED:
            state.failures.add(trial)
        return method.on_trial_exited_early(state, trial, reason)
    return []  # of a newer version: nothing that this one could answer
