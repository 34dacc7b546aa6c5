"""A search method of the user's own: it lives elsewhere, and answers numbered events.

The fold asks nothing of it and waits for nothing: what happens to trials is noted down as events,
and its answer to all events up to some number is an event of the log like any other. An answer
counts once, however often it is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from detslurm.searcher import operations as ops
from detslurm.searcher.events import Operations, Validated
from detslurm.searcher.method import Method
from detslurm.searcher.state import CREATED, PROMOTED, Dialogue, SearchTrial, State

REASONS = {"invalid_hp": "INVALID_HP", "canceled": "USER_CANCELED"}


class Custom(Method):
    """Notes down events for the method, and does what it answers."""

    raises_targets = True

    def start(self, state: State) -> None:
        state.dialogue = Dialogue()
        _note(state, "initial_operations")

    def extend(self, state: State) -> None:
        """The method is told, and decides what comes; closed trials stay closed."""
        _dialogue(state).verdict = None
        _note(state, "search_extended")

    def validated(self, state: State, index: int, units: int, event: Validated) -> None:
        if not self.arrived(state, index, units, event):
            return
        trial = state.trials[index]
        _note(state, "validation_completed", index, metric=event.metric, length=trial.target_length)
        if trial.closing:
            self._finish(state, index)

    def ended(self, state: State, index: int) -> None:
        reason = REASONS.get(state.trials[index].outcome or "", "ERRORED")
        _note(state, "trial_exited_early", index, reason=reason)

    refused = ended

    def closed(self, state: State, index: int) -> None:
        _note(state, "trial_closed", index)

    def over(self, state: State) -> bool:
        return not state.open and _dialogue(state).verdict is not None

    def progress(self, state: State, shares: Mapping[int, float]) -> float:
        return _dialogue(state).progress

    def operations(self, state: State, event: Operations) -> None:
        dialogue = _dialogue(state)
        if not dialogue.answered < event.after <= dialogue.last:
            return
        dialogue.answered = event.after
        dialogue.events = [e for e in dialogue.events if e["id"] > event.after]
        for plain in event.ops:
            if dialogue.verdict is None:
                self._do(state, dialogue, ops.read_operation(plain))

    def _do(self, state: State, dialogue: Dialogue, operation: ops.Operation | None) -> None:
        match operation:
            case ops.Create():
                self._create(state, dialogue, operation)
            case ops.Progress(progress=progress) if math.isfinite(progress):
                dialogue.progress = progress
            case ops.Shutdown():
                self._shut_down(state, dialogue, operation)
            case ops.ValidateAfter(request_id=request, length=length):
                if (index := dialogue.trials.get(str(request))) is not None:
                    self._train(state, index, length)
            case ops.Close(request_id=request):
                if (index := dialogue.trials.get(str(request))) is not None:
                    self._close(state, index)

    def _create(self, state: State, dialogue: Dialogue, operation: ops.Create) -> None:
        name = str(operation.request_id)
        if name in dialogue.trials:
            return
        trial = SearchTrial(hparams=operation.hparams, request_id=name)
        uuid = (operation.checkpoint or {}).get("uuid")
        trial.source_checkpoint = uuid if isinstance(uuid, str) else None
        dialogue.trials[name] = index = state.create(trial)
        _note(state, "trial_created", index)

    def _train(self, state: State, index: int, length: int) -> None:
        trial = state.trials[index]
        if trial.status == "closed" or trial.final or trial.closing or length < 1:
            return
        has_reported = trial.reached > trial.resumed_at
        trial.target_length = length
        trial.reached = min(trial.reached, length - 1)  # what it has trained it validates once more
        if has_reported:  # a run that is leaving after its report comes back for this length
            trial.resumed_at = min(trial.resumed_at, trial.reached - 1)
        if trial.status == "paused":
            state.enqueue(index, PROMOTED if trial.fencing_token else CREATED)

    def _close(self, state: State, index: int) -> None:
        """Now, or once the trial has trained to the length that it was asked for."""
        trial = state.trials[index]
        if trial.target_length is None or trial.settled:
            self._finish(state, index)
        else:
            trial.closing = True

    def _finish(self, state: State, index: int) -> None:
        if state.trials[index].status != "closed":
            state.finish(index)
            if state.trials[index].status == "closed":
                self.closed(state, index)

    def _shut_down(self, state: State, dialogue: Dialogue, operation: ops.Shutdown) -> None:
        cancel = "canceled" if operation.cancel else "completed"
        dialogue.verdict = "error" if operation.failure else cancel
        for index, trial in enumerate(state.trials):
            trial.stop = trial.status == "assigned"
            self._finish(state, index)


def _note(state: State, kind: str, index: int | None = None, **more: Any) -> None:
    """Note down an event for the method, with the next number."""
    dialogue = _dialogue(state)
    dialogue.last += 1
    event: dict[str, Any] = {"id": dialogue.last, "event": kind}
    if index is not None:
        event["request_id"] = state.trials[index].request_id
    dialogue.events.append({**event, **more})


def _dialogue(state: State) -> Dialogue:
    assert state.dialogue is not None
    return state.dialogue
