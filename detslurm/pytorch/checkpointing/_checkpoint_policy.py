"""Is this validation worth a checkpoint? The policy's answer, and the search's metric."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from detslurm.errors import MetricError
from detslurm.pytorch._plan import Policy
from detslurm.pytorch._state import TrialState
from detslurm.store.metric_rank import better


class CheckpointPolicy:
    """Compares validations by the metric of the searcher."""

    def __init__(
        self,
        policy: Policy,
        searcher: Mapping[str, Any],
        best_of_experiment: Callable[[], float | None] | None,
        *,
        needed: bool,
    ) -> None:
        self._policy = policy
        self._name = searcher.get("metric")
        self._smaller = searcher.get("smaller_is_better", True)
        self._best_of_experiment = best_of_experiment
        self._needed = needed or policy == "best"
        self._best: float | None = None

    def searcher_metric(self, metrics: Mapping[str, Any]) -> float | None:
        """The metric that the search is over; None where there is no search.

        Raises `MetricError` when it is missing, or no number, and something depends on it.
        """
        if self._name is None:
            return None
        value = metrics.get(self._name)
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.item()
        if isinstance(value, numbers.Real | np.number):
            return float(value)
        if not self._needed:
            return None
        if self._name not in metrics:
            raise MetricError(
                f"searcher.metric is '{self._name}', but the validation metrics are"
                f" {', '.join(sorted(metrics)) or 'none'}"
            )
        raise MetricError(f"searcher.metric '{self._name}' must be a number, not {value!r}")

    def is_to_be_saved(self, metric: float | None, state: TrialState) -> bool:
        """Whether the policy wants a checkpoint of the state just validated. Call it before the
        metrics are reported: they must be better than all before them."""
        if self._policy != "best":
            return self._policy == "all"
        assert metric is not None
        if self._best_of_experiment is None:
            self._best = state.best
        elif self._beats(metric):  # reads all trials: only where it may be the best of all
            self._best = self._best_of_experiment()
        if not self._beats(metric):
            return False
        self._best = state.best = metric
        return True

    def _beats(self, metric: float) -> bool:
        return better(metric, self._best, self._smaller)
