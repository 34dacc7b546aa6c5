"""Trains wrapped models: forward, backward and step are the trial's own code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from detslurm.core import Context
from detslurm.core._collective import run_collectively
from detslurm.errors import InvalidExperimentException
from detslurm.pytorch._averages import kept_output
from detslurm.pytorch._base_trial import by_name, evaluates_batches
from detslurm.pytorch._context import PyTorchTrialContext
from detslurm.pytorch._ddp import is_sharded
from detslurm.pytorch._driver import Driver, Evaluator, Shard
from detslurm.pytorch._hooks import Hooks
from detslurm.pytorch._loaders import ENDLESS, length_of
from detslurm.pytorch._sanity_checks import explain
from detslurm.pytorch._trial import PyTorchTrial, evaluate_batch_of
from detslurm.pytorch.checkpointing._saving import ModelCheckpoints


class ModelDriver(Driver):
    """Drives a `PyTorchTrial`.

    Raises `InvalidExperimentException` where the trial lacks what training needs.
    """

    windows_end_with_epochs = False
    loader_checks_off = "context.experimental.disable_dataset_reproducibility_checks()"
    loader_batches = 1
    reports = True

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        name = type(trial).__name__
        if not context.models:
            raise InvalidExperimentException(
                f"{name} has no model: pass each through context.wrap_model() in __init__"
            )
        if not context.optimizers:
            raise InvalidExperimentException(
                f"{name} has no optimizer: pass each through context.wrap_optimizer() in __init__"
            )
        evaluates_batches(trial)
        self._trial, self._context = trial, context
        self._of_batch = by_name(trial.train_batch, "batch", "epoch_idx", "batch_idx")
        self.shard = Shard(context.distributed.rank, context.distributed.size)

    @staticmethod
    def epoch_len(lengths: Sequence[int | None]) -> int:
        """The chief's length: it has the longest shard, and every rank counts by that."""
        return ENDLESS if lengths[0] is None else lengths[0]

    def begin_training(self) -> None:
        for model in self._context.models:
            model.train()

    def train_batch(self, batches: Iterator[Any] | None, epoch_idx: int, batch_idx: int) -> Any:
        assert batches is not None
        context = self._context
        batch = context._moved(next(batches))
        around = context._around_batch()
        try:
            if around is None:
                result = self._of_batch(batch, epoch_idx, batch_idx)
            else:
                with around:
                    result = self._of_batch(batch, epoch_idx, batch_idx)
        except RuntimeError as err:
            explain(err)
            raise
        context._amp.after_batch()
        if context.lr_schedulers:
            assert context._epoch_len is not None
            for scheduler in context.lr_schedulers:
                scheduler.step_after(batch_idx, context._epoch_len, context._aggregation)
        return result

    def reporting(self, done: int, length: int) -> None:
        context = self._context
        context._sanity_checks.reporting(context.models, context.optimizers)
        if 0 < length <= done:
            context._sanity_checks.ending(done, context._aggregation)

    def evaluator(self, batches: Any, at_most: int | None) -> ModelEvaluator:
        return ModelEvaluator(self._trial, self._context, batches, at_most)

    def checkpoints(self, core: Context, hooks: Hooks, *, is_trainer: bool) -> ModelCheckpoints:
        return ModelCheckpoints(self._trial, self._context, core, hooks, is_trainer=is_trainer)


class ModelEvaluator(Evaluator):
    """Evaluates a `PyTorchTrial`."""

    def __init__(
        self, trial: PyTorchTrial, context: PyTorchTrialContext, batches: Any, at_most: int | None
    ) -> None:
        self._trial, self._context = trial, context
        self._batches, self._at_most = batches, at_most
        self._evaluate_batch = evaluate_batch_of(trial)
        self.together = context.distributed.size > 1 and any(
            is_sharded(parameter) for model in context.models for parameter in model.parameters()
        )
        if self.together and not evaluates_batches(trial):
            raise InvalidExperimentException(
                "evaluate_full_dataset() runs on the chief alone, and a sharded model on all slots"
                " together: override evaluate_batch() instead"
            )

    def begin(self) -> None:
        context = self._context
        if context.distributed.size > 1:
            context._data_parallel.broadcast_buffers(context.models)
        for model in context.models:
            model.eval()

    def passes(self) -> int:
        """How many passes all ranks make: of a sharded model none can make one alone."""
        if not self.together:
            return 0

        def count() -> int:
            batches = length_of(self._batches)
            return batches if self._at_most is None else min(batches, self._at_most)

        def most(counts: list[int]) -> int:
            if min(counts) == 0 < max(counts):
                raise ValueError(
                    f"validation has {sum(counts)} batches for {len(counts)} slots: with a sharded"
                    " model each needs one; make the batches smaller"
                )
            return max(counts)

        return run_collectively(self._context.distributed, count, most)

    def outputs(self) -> list[Any]:
        outputs = []
        for index, batch in enumerate(self._batches):
            if self._at_most is not None and index >= self._at_most:
                break
            self._last = self._context._moved(batch), index
            outputs.append(kept_output(self._evaluate(*self._last)))
        return outputs

    def keep_up(self, passes: int) -> None:
        for _ in range(passes):
            self._evaluate(*self._last)

    def _evaluate(self, batch: Any, index: int) -> Any:
        with self._context._amp.forward():
            try:
                return self._evaluate_batch(batch, index)
            except RuntimeError as err:
                explain(err)
                raise

    def full(self) -> Any:
        with self._context._amp.forward():
            return self._trial.evaluate_full_dataset(self._batches)
