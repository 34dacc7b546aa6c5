"""One validation: by batches on all ranks, or at once on the chief."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from detslurm.core._collective import run_collectively
from detslurm.errors import InvalidExperimentException
from detslurm.pytorch._averages import array_of, kept, on_host
from detslurm.pytorch._context import PyTorchTrialContext
from detslurm.pytorch._ddp import is_sharded
from detslurm.pytorch._evaluation import Share, metrics_of, share_of
from detslurm.pytorch._hooks import Hooks
from detslurm.pytorch._reducer import Phase
from detslurm.pytorch._trial import PyTorchTrial, evaluate_batch_of, evaluates_batches


class Validation:
    """Evaluates the trial whenever asked to."""

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        hooks: Hooks,
        batches: Any,
        at_most: int | None = None,
    ) -> None:
        self._trial, self._context, self._hooks = trial, context, hooks
        self._batches, self._at_most = batches, at_most
        self._by_batch = evaluates_batches(trial)
        self._evaluate_batch = evaluate_batch_of(trial)
        self._sharded = context.distributed.size > 1 and any(
            is_sharded(parameter) for model in context.models for parameter in model.parameters()
        )
        if self._sharded and not self._by_batch:
            raise InvalidExperimentException(
                "evaluate_full_dataset() runs on the chief alone, and a sharded model on all slots"
                " together: override evaluate_batch() instead"
            )

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def metrics(self) -> dict[str, Any]:
        """Evaluate; the metrics, the same on all ranks."""
        context, hooks = self._context, self._hooks
        context._reducers.reset()
        hooks.on_validation_start()
        if context.distributed.size > 1:
            context._data_parallel.broadcast_buffers(context.models)
        for model in context.models:
            model.eval()
        metrics = self._of_batches() if self._by_batch else self._of_everything()
        hooks.on_validation_end(metrics)
        return metrics

    def _of_batches(self) -> dict[str, Any]:
        reducers = self._trial.evaluation_reducer()
        passes = self._passes_together() if self._sharded else 0

        def part() -> tuple[Share, list[Any]]:
            self._hooks.on_validation_epoch_start()
            outputs = self._outputs()
            self._hooks.on_validation_epoch_end(outputs)
            share = share_of(outputs, reducers)
            contribution = self._context._reducers.contribution(Phase.VALIDATION)
            if len(outputs) < passes:
                contribution = copy.deepcopy(contribution)
                self._keep_up(passes - len(outputs))
            return share, contribution

        def decide(parts: list[tuple[Share, list[Any]]]) -> dict[str, Any]:
            metrics = metrics_of([share for share, _ in parts], reducers)
            return metrics | self._reduced([contribution for _, contribution in parts])

        if self._sharded:
            # An error must end this process: the others wait in a forward pass, not for an answer.
            own = part()
            return run_collectively(self._context.distributed, lambda: own, decide)
        return run_collectively(self._context.distributed, part, decide)

    def _passes_together(self) -> int:
        """How many forward passes all ranks make: none can make one without the others."""

        def count() -> int:
            batches = len(self._batches)
            return batches if self._at_most is None else min(batches, self._at_most)

        def most(counts: list[int]) -> int:
            if min(counts) == 0 < max(counts):
                raise ValueError(
                    f"validation has {sum(counts)} batches for {len(counts)} slots: with a sharded"
                    " model each needs one; make the batches smaller"
                )
            return max(counts)

        return run_collectively(self._context.distributed, count, most)

    def _keep_up(self, passes: int) -> None:
        """Take part in others' forward passes; what comes of it doesn't count."""
        for _ in range(passes):
            self._evaluate(*self._last)

    def _outputs(self) -> list[Any]:
        outputs = []
        for index, batch in enumerate(self._batches):
            if self._at_most is not None and index >= self._at_most:
                break
            self._last = self._context._moved(batch), index
            outputs.append(_kept(self._evaluate(*self._last)))
        return [_without_tensors(output) for output in outputs]  # now: a device works ahead

    def _evaluate(self, batch: Any, index: int) -> Any:
        with self._context._amp.forward():
            return self._evaluate_batch(batch, index)

    def _of_everything(self) -> dict[str, Any]:
        def part() -> tuple[dict[str, Any], list[Any]]:
            metrics: dict[str, Any] = {}
            if self._context.distributed.rank == 0:
                with self._context._amp.forward():
                    metrics = self._trial.evaluate_full_dataset(self._batches)
                if not isinstance(metrics, dict):
                    raise TypeError(
                        "evaluate_full_dataset() must return a dict of metrics, not"
                        f" {type(metrics).__name__}"
                    )
            return metrics, self._context._reducers.contribution(Phase.VALIDATION)

        def decide(parts: list[tuple[dict[str, Any], list[Any]]]) -> dict[str, Any]:
            metrics = {name: _number(v) for name, v in _without_tensors(parts[0][0]).items()}
            return metrics | self._reduced([own for _, own in parts])

        return run_collectively(self._context.distributed, part, decide)

    def _reduced(self, contributions: list[list[Any]]) -> dict[str, Any]:
        return on_host(self._context._reducers.metrics(Phase.VALIDATION, contributions))


def _kept(output: Any) -> Any:
    if not isinstance(output, dict):
        return output
    return {name: kept(value) for name, value in output.items()}


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
