"""The history of a search by Optuna: requests and reports, in order."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Position = tuple[int, int, float]
"""How far a random generator is: words drawn, whether a normal deviate is kept, and its value."""


class KnownTrial(msgspec.Struct, omit_defaults=True):
    """One trial; a metric that is not a number is None."""

    hparams: dict[str, Any]
    state: Literal["running", "complete", "pruned", "failed"] = "running"
    reports: list[tuple[int, float | None]] = []
    notes: dict[str, Any] = {}  # the pruner's own
    metrics: dict[str, Any] = {}  # of the last report, where the search compares by several values


class TrialHistory(msgspec.Struct, omit_defaults=True):
    """Trials in the order of their samples; `order` has i for trial i sampled, ~i for it ended."""

    trials: dict[int, KnownTrial] = {}
    order: list[int] = []
    generators: list[Position] = []
    known: list[KnownTrial] = []  # of earlier experiments; the search itself has them once
