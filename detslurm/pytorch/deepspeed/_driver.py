"""Trains DeepSpeed's engines: forward, backward and step are theirs, called by the trial."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from deepspeed.runtime.engine import DeepSpeedEngine

from detslurm.core import Context
from detslurm.core._collective import run_collectively
from detslurm.errors import InvalidExperimentException
from detslurm.pytorch._averages import array_of, averages, kept_output, partial
from detslurm.pytorch._base_trial import by_name, evaluates_batches
from detslurm.pytorch._driver import Driver, Evaluator, Shard
from detslurm.pytorch._hooks import Hooks
from detslurm.pytorch._loaders import ENDLESS, length_of
from detslurm.pytorch.deepspeed._checkpoints import EngineCheckpoints
from detslurm.pytorch.deepspeed._context import DeepSpeedTrialContext
from detslurm.pytorch.deepspeed._trial import DeepSpeedTrial

logger = logging.getLogger("detslurm.pytorch")


class EngineDriver(Driver):
    """Drives a `DeepSpeedTrial`; all ranks make theirs together.

    Raises `InvalidExperimentException` where the trial lacks what training needs.
    """

    windows_end_with_epochs = True
    loader_checks_off = "context.disable_dataset_reproducibility_checks()"

    def __init__(self, trial: DeepSpeedTrial, context: DeepSpeedTrialContext) -> None:
        if not context.models:
            raise InvalidExperimentException(
                f"{type(trial).__name__} has no engine: pass each through"
                " context.wrap_model_engine() in __init__"
            )
        _refuse_what_cannot_resume(context)
        place = context._place
        if not any(context.distributed.allgather(place.should_report_metrics)):
            raise InvalidExperimentException("no rank reports metrics: see context.set_mpu()")
        if not evaluates_batches(trial) and _spreads(context):
            raise InvalidExperimentException(
                "evaluate_full_dataset() runs on the chief alone, and this engine on all slots"
                " together: override evaluate_batch() instead"
            )
        self._trial, self._context = trial, context
        self._of_batch = by_name(trial.train_batch, "dataloader_iter", "epoch_idx", "batch_idx")
        self.reports = place.should_report_metrics
        self.shard = Shard(
            place.data_parallel_rank, place.data_parallel_world_size, place.should_build_data_loader
        )
        self.loader_batches = context.get_num_micro_batches_per_slot()
        at_once = context.use_pipeline_parallel or not context._accumulates
        self._calls = 1 if at_once else self.loader_batches
        self._checked = False

    def epoch_len(self, lengths: Sequence[int | None]) -> int:
        """As many whole batches as every rank has micro-batches for."""
        known = [length for length in lengths if length is not None]
        if not known:
            return ENDLESS
        if min(known) < self.loader_batches and max(known) > 0:
            raise InvalidExperimentException(
                f"an epoch has {min(known)} micro-batches on a slot, and one batch takes"
                f" {self.loader_batches} (gradient_accumulation_steps): there is too little data"
            )
        return min(known) // self.loader_batches

    def begin_training(self) -> None:
        for engine in self._context.models:
            engine.train()

    def train_batch(self, batches: Iterator[Any] | None, epoch_idx: int, batch_idx: int) -> Any:
        """Train on all micro-batches of one batch; their metrics, averaged."""
        results = [self._of_batch(batches, epoch_idx, batch_idx) for _ in range(self._calls)]
        for engine in self._context.models:
            _check_accumulation(engine)
        return results[0] if len(results) == 1 else _mean_of(results)

    def reporting(self, done: int, length: int) -> None:
        if self._checked:
            return
        self._checked = True
        context = self._context
        is_chief = context.distributed.rank == 0  # what it warns of is the same on all ranks
        if context.use_pipeline_parallel or not is_chief:
            return
        if all(engine.micro_steps == 0 for engine in context.models):
            logger.warning(
                "train_batch() calls no engine.step(): nothing is learned unless it steps in"
                " another way"
            )

    def evaluator(self, batches: Any, at_most: int | None) -> EngineEvaluator:
        return EngineEvaluator(self._trial, self._context, batches, at_most)

    def checkpoints(self, core: Context, hooks: Hooks, *, is_trainer: bool) -> EngineCheckpoints:
        return EngineCheckpoints(self._trial, self._context, core, hooks, is_trainer=is_trainer)


class EngineEvaluator(Evaluator):
    """Evaluates a `DeepSpeedTrial`: all ranks make the same number of passes."""

    def __init__(
        self,
        trial: DeepSpeedTrial,
        context: DeepSpeedTrialContext,
        loader: Any,
        at_most: int | None,
    ) -> None:
        self._trial, self._context = trial, context
        self._loader, self._at_most = loader, at_most
        self._evaluate_batch = by_name(trial.evaluate_batch, "dataloader_iter", "batch_idx")
        self._is_pipeline = context.use_pipeline_parallel
        self._takes = context.get_num_micro_batches_per_slot() if self._is_pipeline else 1
        self.together = context.distributed.size > 1
        self._passes = 0
        if evaluates_batches(trial):
            self.passes()  # a fault of the data is known before training

    def begin(self) -> None:
        for engine in self._context.models:
            engine.eval()

    def passes(self) -> int:
        """How many passes all ranks make.

        Ranks with less data repeat their last micro-batch, which does not count. A pipeline
        averages over all ranks itself: it evaluates the least number that any rank has.
        """
        self._passes = run_collectively(self._context.distributed, self._own, self._together)
        return self._passes

    def _together(self, counts: list[int | None]) -> int:
        known = [count for count in counts if count is not None]
        if not known or min(known) == 0:
            raise InvalidExperimentException(
                f"validation needs {self._takes} micro-batches on each slot that reads data, and"
                " there is one with less; make the batches smaller"
            )
        passes = min(known) if self._is_pipeline else max(known)
        return passes if self._at_most is None else min(passes, self._at_most)

    def _own(self) -> int | None:
        if self._loader is None:
            return None
        return length_of(self._loader) // self._takes

    def outputs(self) -> list[Any]:
        own = self._own()
        self._batches = None if self._loader is None else _Lasting(self._loader)
        self._done = min(self._passes, self._passes if own is None else own)
        return [
            kept_output(self._evaluate_batch(self._batches, index)) for index in range(self._done)
        ]

    def keep_up(self, passes: int) -> None:
        if self._batches is not None:
            self._batches.lasts = True
        for index in range(self._done, self._done + passes):
            self._evaluate_batch(self._batches, index)

    def full(self) -> Any:
        return self._trial.evaluate_full_dataset(self._loader)


class _Lasting:
    """The micro-batches of a loader; when it `lasts`, the last one again and again."""

    def __init__(self, loader: Any) -> None:
        self._batches = iter(loader)
        self.lasts = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            self._last = next(self._batches)
        except StopIteration:
            if not self.lasts:
                raise
        return self._last


def _refuse_what_cannot_resume(context: DeepSpeedTrialContext) -> None:
    first = context.models[0]
    without_zero = first.zero_optimization_stage() == 0
    if context.use_pipeline_parallel and first.bfloat16_enabled() and without_zero:
        raise InvalidExperimentException(
            "DeepSpeed can't load the checkpoints of a pipeline in bf16 without ZeRO: set"
            " zero_optimization.stage to 1"
        )


def _spreads(context: DeepSpeedTrialContext) -> bool:
    """Whether no rank has a whole model."""
    if context.distributed.size == 1:
        return False
    if context._place.data_parallel_world_size < context.distributed.size:
        return True
    return any(engine.zero_optimization_stage() == 3 for engine in context.models)


def _check_accumulation(engine: DeepSpeedEngine) -> None:
    """Raise `AssertionError` unless gradients of whole batches were accumulated."""
    steps = engine.gradient_accumulation_steps()
    manual = engine._is_gradient_accumulation_boundary is not None
    manual = manual or not engine.managed_gradient_accumulation()
    if engine.micro_steps % steps and not manual:
        raise AssertionError(
            f"train_batch() did not train for gradient accumulation steps: the engine made"
            f" {engine.micro_steps % steps} micro-steps of {steps}. Without"
            " context.disable_auto_grad_accumulation() train_batch() is called for each micro-batch"
            " and makes one step; with it, it makes"
            " context.get_num_micro_batches_per_slot() of them"
        )


def _mean_of(results: Sequence[Any]) -> Any:
    """The metrics of micro-batches as those of one batch."""
    if not all(isinstance(result, dict) for result in results):
        if any(isinstance(result, dict) for result in results):
            raise TypeError("train_batch() must return a dict of metrics each time, or never")
        return _mean(results)
    names = dict.fromkeys(name for result in results for name in result)
    return {name: _mean([r[name] for r in results if name in r]) for name in names}


def _mean(values: Sequence[Any]) -> Any:
    """On the device, where a device has to be waited for; as for batches otherwise."""
    if all(isinstance(value, torch.Tensor) and value.numel() == 1 for value in values):
        if all(value.is_cpu for value in values):  # torch's own functions take ten times as long
            return np.array(sum(value.item() for value in values) / len(values))
        return torch.stack([_wide(value.detach().reshape(())) for value in values]).mean()
    host = [array_of(value) if isinstance(value, torch.Tensor) else value for value in values]
    return averages([partial([{"": value} for value in host])])[""]


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.dtype in (torch.float64, torch.int64) else value.float()
