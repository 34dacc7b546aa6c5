"""The callback through which Lightning's Trainer reports, saves, stops and goes on."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm._info import get_cluster_info
from detslurm.core import Unit
from detslurm.frameworks.goal import Goal
from detslurm.frameworks.reports import Reports
from detslurm.lightning._logger import ListeningLogger

try:
    from lightning.pytorch import Callback
except ImportError:  # the package's earlier name, which is still published
    from pytorch_lightning import Callback

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from detslurm.core import Context

logger = logging.getLogger("detslurm.lightning")

CHECKPOINT = "checkpoint.ckpt"
"""Lightning's file (or directory) within a checkpoint of the trial."""


class TrialCallback(Callback):  # type: ignore[misc]
    """Connect Lightning's Trainer with the trial that it runs in.

    What the model logs becomes metrics: of validations in the group "validation" (where the
    searcher's metric is looked for), of tests in "test", all else in "training". Steps are the
    Trainer's `global_step`. Each checkpoint of a `ModelCheckpoint` is stored with the trial, and
    one at the end of training. When the trial is to leave, be it for a preemption, the time limit,
    its user or the search, a checkpoint is saved at the end of the step and training stops; during
    a validation, at its end. Where the search has operations, training goes on from one to the
    next: each is completed, with a checkpoint, by the first validation at or after its length.

    Args:
        core_context: What `detslurm.core.init()` gave.
        filter_metrics: The names of the metrics to report; by default all.
        user_data: Kept in the metadata of each checkpoint, under "user_data"; nothing by default.

    Attributes:
        ckpt_path: The checkpoint to go on from, or None to begin: pass it to `trainer.fit()`.

    Example:
        import detslurm as det
        from detslurm.lightning import TrialCallback

        with det.core.init() as core:
            callback = TrialCallback(core)
            trainer = lightning.Trainer(max_epochs=10, callbacks=[callback])
            trainer.fit(model, data, ckpt_path=callback.ckpt_path)
    """

    def __init__(
        self,
        core_context: Context,
        filter_metrics: Sequence[str] | None = None,
        user_data: Mapping[str, Any] | None = None,
    ) -> None:
        self._core = core_context
        self._is_chief = core_context.distributed.rank == 0
        self._user_data = dict(user_data) if user_data is not None else None
        self._reports = Reports(core_context.train, filter_metrics, logger)
        self._goal = Goal.of(core_context)
        self._trainer: Trainer | None = None
        self._group: str | None = None  # of what is logged now; None: it is left out
        self._step = 0  # the last one whose end was seen, and the epochs until then
        self._epochs = 0.0
        self._stored_at: int | None = None  # the chief knows
        self._leaves = False
        self._restored = ExitStack()
        info = get_cluster_info()
        self._trial_id = info.trial.trial_id if info is not None else None
        self.ckpt_path: str | None = None
        self._resumes = False
        if info is not None and info.latest_checkpoint is not None:
            self._begin_from(info.latest_checkpoint, info.trial._steps_completed)

    def _begin_from(self, checkpoint: str, steps: int) -> None:
        if not steps:  # Lightning would count on from the steps of the trial that saved it
            logger.warning(
                "this trial starts warm, and counts from 0: load the weights of checkpoint %s in"
                " your code, from core.checkpoint.restore_path()",
                checkpoint,
            )
            return
        path = self._restored.enter_context(self._core.checkpoint.restore_path(checkpoint))
        self.ckpt_path = str(path / CHECKPOINT)
        self._resumes = True

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Listen to what is logged, and see to it that Lightning starts and requeues nothing."""
        ranks = self._core.distributed.size
        if trainer.world_size != ranks:
            raise RuntimeError(
                f"Lightning trains with {trainer.world_size} processes, but core.init() knows of"
                f" {ranks}: start them with `python3 -m detslurm.launch.torch_distributed`, and"
                " call core.init(distributed=DistributedContext.from_torch_distributed())"
            )
        connector = getattr(trainer, "_accelerator_connector", None)
        environment: Any = getattr(connector, "cluster_environment", None)
        if getattr(environment, "auto_requeue", False):
            environment.auto_requeue = False
        if not any(isinstance(one, ListeningLogger) for one in trainer.loggers):
            listener = ListeningLogger(self._on_metrics, self._on_checkpoint)
            trainer.loggers = [*trainer.loggers, listener]
        self._trainer = trainer

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make sure that training goes on where the trial has been."""
        if self._resumes and not trainer.global_step:
            raise RuntimeError(
                "this trial goes on from a checkpoint, but training would begin anew: call"
                " trainer.fit(..., ckpt_path=callback.ckpt_path)"
            )
        self._group = "training"
        self._step, self._epochs = trainer.global_step, float(trainer.current_epoch)
        self._stored_at = self._step if self._resumes else None
        self._resumes = False
        self._follow_goal(trainer)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Save and stop where the trial is to leave."""
        share = 1.0 if trainer.is_last_batch else (batch_idx + 1) / trainer.num_training_batches
        self._epochs = trainer.current_epoch + share
        if trainer.global_step == self._step:
            return  # gradients are being accumulated, and would be lost
        self._step = trainer.global_step
        if not self._core.preempt.should_preempt():
            return
        validates = _validates_now(trainer, batch_idx)
        if not (validates and self._is_goal_reached(trainer)):  # the search needs that one
            self._leave(trainer)
        if not validates:
            trainer.limit_val_batches = 0  # Lightning would validate before it stops

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave out what is logged of single batches."""
        self._group = None

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on it is the whole validation that is logged."""
        self._group = "validation"

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the search what it waits for, and leave where the trial is to."""
        self._group = "training"
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if self._is_goal_reached(trainer):
            assert self._goal is not None
            self._save(trainer)
            self._goal.complete(self._reports.validation)
            self._follow_goal(trainer)
        if self._core.preempt.should_preempt():
            self._leave(trainer)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave out what is logged of single batches."""
        self._group = None

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on it is the whole test that is logged."""
        self._group = "test"

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save what was trained."""
        self._save(trainer)
        if self._is_goal_reached(trainer) and not self._leaves:
            raise RuntimeError(
                "the search waits for a validation at the end of training, and there was none: set"
                " val_check_interval or check_val_every_n_epoch such that one comes then"
            )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let go of the checkpoint that training went on from."""
        self._group = None
        self._restored.close()

    def _on_metrics(self, metrics: Mapping[str, Any]) -> None:
        leaves_out = self._group is None or (self._leaves and self._group == "training")
        if leaves_out or not self._is_chief:
            return
        assert self._trainer is not None and self._group is not None
        step = self._trainer.global_step
        if self._group == "validation":
            self._reports.evaluated(step, metrics)
            self._reports.flush()
        else:
            self._reports.report(self._group, step, metrics)
        if self._group == "training":
            self._report_progress(self._trainer)

    def _report_progress(self, trainer: Trainer) -> None:
        steps, _ = _end(trainer)
        if self._goal is not None:
            self._goal.report_progress(self._position(trainer))
        elif math.isfinite(steps):
            self._core.train.report_progress(min(trainer.global_step / steps, 1.0))

    def _on_checkpoint(self, path: Path) -> None:
        """Store what a `ModelCheckpoint` has saved; only the chief hears of it."""
        assert self._trainer is not None
        if self._stored_at == self._trainer.global_step:
            return
        with self._core.checkpoint.store_path(self._metadata()) as (folder, _):
            copy = shutil.copytree if path.is_dir() else shutil.copyfile
            copy(path, folder / CHECKPOINT)
        self._stored_at = self._trainer.global_step

    def _save(self, trainer: Trainer) -> None:
        """Store a checkpoint of this step, unless there is one. All ranks call."""
        ranks = self._core.distributed
        if trainer.fast_dev_run or ranks.broadcast(self._stored_at == trainer.global_step):
            return
        with ExitStack() as stack:
            folder = None
            if self._is_chief:
                stored = self._core.checkpoint.store_path(self._metadata())
                folder, _ = stack.enter_context(stored)
            trainer.save_checkpoint(Path(ranks.broadcast(folder), CHECKPOINT))
        self._stored_at = trainer.global_step

    def _metadata(self) -> dict[str, Any]:
        assert self._trainer is not None
        metadata = {"steps_completed": self._trainer.global_step}
        more = {"trial_id": self._trial_id, "user_data": self._user_data}
        return metadata | {name: value for name, value in more.items() if value is not None}

    def _leave(self, trainer: Trainer) -> None:
        self._leaves = True
        self._save(trainer)
        _stop(trainer)

    def _is_goal_reached(self, trainer: Trainer) -> bool:
        return self._goal is not None and self._goal.is_reached(self._position(trainer))

    def _follow_goal(self, trainer: Trainer) -> None:
        """Stop where the search wants no more. Raise `ValueError` where it wants too much."""
        if self._goal is None:
            return
        if self._goal.is_over:
            _stop(trainer)
            return
        if not trainer.enable_validation:
            raise ValueError("the search compares validations, but the Trainer makes none")
        end = self._counted(trainer, *_end(trainer))
        self._goal.check(end, "Lightning's Trainer", "its max_steps or max_epochs")

    def _position(self, trainer: Trainer) -> float:
        return self._counted(trainer, trainer.global_step, self._epochs)

    def _counted(self, trainer: Trainer, steps: float, epochs: float) -> float:
        """That many steps and epochs in the unit of the search."""
        assert self._goal is not None
        if self._goal.unit is Unit.EPOCHS:
            return epochs
        if self._goal.unit is Unit.BATCHES:
            return steps
        size = getattr(trainer.train_dataloader, "batch_size", None)
        if size is None:
            raise ValueError(
                "how many records a batch has is not known here: give searcher.max_length in"
                " batches or epochs"
            )
        return steps * float(size * trainer.accumulate_grad_batches * trainer.world_size)


def _end(trainer: Trainer) -> tuple[float, float]:
    """The steps and epochs that the Trainer makes at most."""
    per_epoch = trainer.num_training_batches / trainer.accumulate_grad_batches
    per_epoch = math.ceil(per_epoch) if math.isfinite(per_epoch) else per_epoch
    steps = trainer.max_steps if trainer.max_steps > 0 else math.inf
    epochs = trainer.max_epochs if (trainer.max_epochs or 0) > 0 else math.inf
    return min(steps, epochs * per_epoch), min(epochs, steps / per_epoch)


def _validates_now(trainer: Trainer, batch_idx: int) -> bool:
    """Whether a validation follows this batch."""
    epochs, batches = trainer.check_val_every_n_epoch, trainer.val_check_batch
    if not trainer.enable_validation or (epochs and (trainer.current_epoch + 1) % epochs):
        return False
    if batches is None:  # it validates by the clock
        return False
    if not math.isfinite(batches):
        return bool(trainer.is_last_batch)
    done = batch_idx if epochs else trainer.fit_loop.total_batch_idx
    return bool((done + 1) % batches == 0)


def _stop(trainer: Trainer) -> None:
    trainer.should_stop = True
    # Else training goes on until then.
    trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = 0
