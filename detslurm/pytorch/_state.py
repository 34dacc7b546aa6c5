"""How far a trial has come: plain numbers that go into every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

_THEIRS = ("trial_id", "last_ckpt", "step_id", "last_val", "batches_trained", "epochs_trained")


@dataclass
class TrialState:
    """Counters of a trial; `last_ckpt` and `last_val` are the batches of the latest of each."""

    trial_id: int = 0
    last_ckpt: int = 0
    step_id: int = 0
    last_val: int = 0
    batches_trained: int = 0
    epochs_trained: int = 0
    # Keys that Determined does not keep.
    data_seed: int | None = None
    ranks: int = 1
    best: float | None = None
    searcher_metric: float | dict[str, float] | None = None
    validated: bool = False
    stop_requested: bool = False  # by the trial, before it had the length that was asked for
    # Where a search has several metrics: those of the validations that none dominates.
    front: list[dict[str, float]] = field(default_factory=list)

    @property
    def saved_here(self) -> bool:
        """Whether there is a checkpoint of the last batch."""
        return self.last_ckpt == self.batches_trained > 0

    @property
    def validated_here(self) -> bool:
        """Whether there was a validation after the last batch."""
        return self.validated and self.last_val == self.batches_trained

    def to_dicts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The keys that Determined keeps, which reads nothing else, and the rest."""
        whole = asdict(self)
        return {name: whole.pop(name) for name in _THEIRS}, whole

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any], steps: int) -> TrialState:
        """The state that a checkpoint of any age has; `steps` is from its metadata."""
        known = {field.name for field in fields(cls)}
        state = cls(**{name: value for name, value in saved.items() if name in known})
        if "batches_trained" not in saved:
            state.batches_trained = int(saved.get("latest_batch", steps))
        if "validated" not in saved:
            state.validated = state.last_val > 0
        state.last_ckpt = state.batches_trained
        return state
