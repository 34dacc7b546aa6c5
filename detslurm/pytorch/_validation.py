"""One validation: by batches on all ranks, or at once on the chief."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from detslurm.core import DistributedContext
from detslurm.core._collective import run_collectively
from detslurm.pytorch._averages import array_of, on_host
from detslurm.pytorch._base_trial import BaseTrial, evaluates_batches
from detslurm.pytorch._driver import Evaluator
from detslurm.pytorch._evaluation import Share, metrics_of, share_of
from detslurm.pytorch._hooks import Hooks
from detslurm.pytorch._reducer import Phase, Reducers


class Validation:
    """Evaluates the trial whenever asked to. Metrics come from the ranks that report."""

    def __init__(
        self,
        trial: BaseTrial,
        dist: DistributedContext,
        hooks: Hooks,
        reducers: Reducers,
        evaluator: Evaluator,
        *,
        reports: bool,
    ) -> None:
        self._trial, self._dist, self._hooks = trial, dist, hooks
        self._reducers, self._evaluator, self._reports = reducers, evaluator, reports
        self._by_batch = evaluates_batches(trial)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def metrics(self) -> dict[str, Any]:
        """Evaluate; the metrics, the same on all ranks."""
        self._reducers.reset()
        self._hooks.on_validation_start()
        self._evaluator.begin()
        metrics = self._of_batches() if self._by_batch else self._of_everything()
        self._hooks.on_validation_end(metrics)
        return metrics

    def _of_batches(self) -> dict[str, Any]:
        evaluator, reducers = self._evaluator, self._trial.evaluation_reducer()
        passes = evaluator.passes()

        def part() -> tuple[Share, list[Any] | None]:
            self._hooks.on_validation_epoch_start()
            # Copied to the host only now: a device works ahead.
            outputs = [_without_tensors(output) for output in evaluator.outputs()]
            self._hooks.on_validation_epoch_end(outputs)
            if not self._reports:
                evaluator.keep_up(passes - len(outputs))
                return Share(0, {}), None
            share = share_of(outputs, reducers)
            contribution = self._reducers.contribution(Phase.VALIDATION)
            if len(outputs) < passes:
                contribution = copy.deepcopy(contribution)
                evaluator.keep_up(passes - len(outputs))
            return share, contribution

        def decide(parts: list[tuple[Share, list[Any] | None]]) -> dict[str, Any]:
            metrics = metrics_of([share for share, _ in parts], reducers)
            return metrics | self._reduced([own for _, own in parts])

        if evaluator.together:
            # An error must end this process: the others wait in a forward pass, not for an answer.
            own = part()
            return run_collectively(self._dist, lambda: own, decide)
        return run_collectively(self._dist, part, decide)

    def _of_everything(self) -> dict[str, Any]:
        def part() -> tuple[dict[str, Any], list[Any] | None]:
            metrics: dict[str, Any] = {}
            if self._dist.rank == 0:
                metrics = self._evaluator.full()
                if not isinstance(metrics, dict):
                    raise TypeError(
                        "evaluate_full_dataset() must return a dict of metrics, not"
                        f" {type(metrics).__name__}"
                    )
            return metrics, self._reducers.contribution(Phase.VALIDATION)

        def decide(parts: list[tuple[dict[str, Any], list[Any] | None]]) -> dict[str, Any]:
            metrics = {name: _number(v) for name, v in _without_tensors(parts[0][0]).items()}
            return metrics | self._reduced([own for _, own in parts])

        return run_collectively(self._dist, part, decide)

    def _reduced(self, contributions: list[list[Any] | None]) -> dict[str, Any]:
        reported = [own for own in contributions if own is not None]
        return on_host(self._reducers.metrics(Phase.VALIDATION, reported))


def _without_tensors(output: Any) -> Any:
    if not isinstance(output, dict):
        return output
    return {
        name: array_of(value) if isinstance(value, torch.Tensor) else value
        for name, value in output.items()
    }


def _number(value: Any) -> Any:
    """An array of one number without its shape: a search compares numbers."""
    return value.reshape(()) if isinstance(value, np.ndarray) and value.size == 1 else value
