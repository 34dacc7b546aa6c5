"""A search method as users write them: random samples, each trained in two steps."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from detslurm.searcher import (
    Close,
    Create,
    ExitedReason,
    Operation,
    SearcherState,
    SearchMethod,
    Shutdown,
    ValidateAfter,
)


class RandomSearch(SearchMethod):
    """`trials` trials, `at_once` at a time; the better half of the way is judged by a metric."""

    def __init__(self, trials: int, at_once: int, length: int = 10) -> None:
        self.trials, self.at_once, self.length = trials, at_once, length
        self.created = 0
        self.heard: list[str] = []  # what it was told, for the tests

    def initial_operations(self, searcher_state: SearcherState) -> list[Operation]:
        return [op for _ in range(self.at_once) for op in self._new()]

    def _new(self) -> list[Operation]:
        if self.created == self.trials:
            return []
        request = uuid.UUID(int=self.created + 1, version=4)
        self.created += 1
        return [Create(request, {"x": self.created}), ValidateAfter(request, self.length // 2)]

    def on_trial_created(self, searcher_state: SearcherState, request_id: uuid.UUID) -> list[Any]:
        self.heard.append(f"created {request_id.int & 0xFF}")
        return []

    def on_validation_completed(
        self, searcher_state: SearcherState, request_id: uuid.UUID, metric: Any, train_length: int
    ) -> list[Operation]:
        self.heard.append(f"validated {request_id.int & 0xFF} {train_length}")
        if train_length < self.length and metric < 0.5:
            return [ValidateAfter(request_id, self.length)]
        return [Close(request_id)]

    def on_trial_closed(
        self, searcher_state: SearcherState, request_id: uuid.UUID
    ) -> list[Operation]:
        self.heard.append(f"closed {request_id.int & 0xFF}")
        if len(searcher_state.trials_closed) == self.trials:
            return [Shutdown()]
        return self._new()

    def on_trial_exited_early(
        self, searcher_state: SearcherState, request_id: uuid.UUID, exited_reason: ExitedReason
    ) -> list[Operation]:
        self.heard.append(f"exited {request_id.int & 0xFF} {exited_reason.value}")
        return []

    def progress(self, searcher_state: SearcherState) -> float:
        return len(searcher_state.trials_closed) / self.trials

    def save_method_state(self, path: Path) -> None:
        state = {"created": self.created, "heard": self.heard}
        path.joinpath("method.json").write_text(json.dumps(state))

    def load_method_state(self, path: Path) -> None:
        state = json.loads(path.joinpath("method.json").read_text())
        self.created, self.heard = state["created"], state["heard"]
