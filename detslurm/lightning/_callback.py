"""The callback through which Lightning's Trainer reports, saves, stops and goes on."""

from __future__ import annotations

import inspect
import logging
import math
import os
import shutil
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm._base import contract
from detslurm._base.surviving_signal import SurvivingSignal
from detslurm._base.trust import others_can_change_below
from detslurm.core import Unit
from detslurm.frameworks.checkpoints import FrameworkCheckpoints
from detslurm.frameworks.goal import Goal
from detslurm.frameworks.optimizer_options import Options
from detslurm.frameworks.reports import Reports
from detslurm.lightning._logger import ListeningLogger

try:
    from lightning.pytorch import callbacks
    from lightning.pytorch.callbacks import Callback, Checkpoint, EarlyStopping
    from lightning.pytorch.loops.loop import _Loop
    from lightning.pytorch.plugins.io import AsyncCheckpointIO
except ImportError:  # the package's earlier name, which is still published
    from pytorch_lightning import callbacks
    from pytorch_lightning.callbacks import Callback, Checkpoint, EarlyStopping
    from pytorch_lightning.loops.loop import _Loop
    from pytorch_lightning.plugins.io import AsyncCheckpointIO

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from detslurm.core import Context

logger = logging.getLogger("detslurm.lightning")

CHECKPOINT = "checkpoint.ckpt"
"""Lightning's file (or directory) within a checkpoint of the trial."""

WeightAveraging: Any = getattr(callbacks, "WeightAveraging", ())
"""It has both the model and the average in a checkpoint; none before Lightning 2.6."""


class TrialCallback(Callback):  # type: ignore[misc]
    """Connect Lightning's Trainer with the trial that it runs in.

    Values that the model logs become metrics: of validations in the group "validation" (where the
    searcher's metric is looked for), of tests in "test", all else in "training". Steps are the
    Trainer's `global_step`. Each checkpoint of a `ModelCheckpoint` is stored with the trial, and
    one at the end of training. When the trial is to leave, be it for a preemption, the time limit,
    its user or the search, a checkpoint is saved at the end of the step and training stops; during
    a validation, at its end. Where the search has operations, training goes on from one to the
    next: each is completed, with a checkpoint, by the first validation at or after its length.

    Args:
        core_context: The result of `detslurm.core.init()`.
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
        self._reports = Reports(core_context.train, filter_metrics, logger)
        self._goal = Goal.of(core_context)
        self._trainer: Trainer | None = None
        self._limit: float | None = 1.0  # of validations, as it was given
        self._before_averages = _BeforeAverages(self)
        self._on_sigterm: SurvivingSignal | None = None
        self._group: str | None = None  # of the values logged now; None: they are left out
        self._step = 0  # the last one whose end was seen, and the epochs until then
        self._epochs = 0.0
        # Other values of that step: of its batch, a validation or the end of its epoch.
        self._accumulates = self._validates = self._epoch_ended = self._ended = False
        self._validated_at: int | None = None
        self._stored_at: int | None = None  # these two the chief knows
        self._stored_whole = False
        self._leaves = False
        self._metrics: dict[str, Any] = {}
        self._options: Options | None = None
        self._checkpoints = FrameworkCheckpoints(core_context, user_data, logger)
        resumed = self._checkpoints.resumed
        self.ckpt_path = str(resumed / CHECKPOINT) if resumed is not None else None
        self._is_trusted = False
        if resumed is not None:  # one rank looks: it may have a file of each
            trusted = self._is_chief and not others_can_change_below(resumed)
            self._is_trusted = core_context.distributed.broadcast(trusted)
        self._resumes = resumed is not None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Listen to logged values, and make sure that Lightning starts and requeues nothing.

        Raises:
            RuntimeError: If Lightning has another number of processes than `core.init()` knows of.
        """
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
        # Behind those whose state it saves; checkpoints are the last ones anyway.
        others = [one for one in trainer.callbacks if one not in (self, self._before_averages)]
        first = [one for one in others if not isinstance(one, Checkpoint)]
        trainer.callbacks = [self._before_averages, *first, self, *others[len(first) :]]
        self._trainer = trainer
        handler = signal.getsignal(signal.SIGTERM)
        installs = threading.current_thread() is threading.main_thread()  # Python lets no other
        if installs and isinstance(handler, SurvivingSignal):
            self._on_sigterm = handler
        self._limit = trainer.limit_val_batches
        if stage == "fit" and self.ckpt_path and self._is_trusted:
            _declare_trusted(trainer, self.ckpt_path)
        if stage == "fit" and contract.TEST_MODE in os.environ:
            trainer.limit_train_batches = trainer.limit_val_batches = 1
            trainer.fit_loop.max_epochs = 1

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the options of optimizers as this trial makes them, before another's are loaded."""
        if self._checkpoints.other_hparams is not None:
            schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
            self._options = Options(trainer.optimizers, schedulers)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make sure that training goes on where the trial has been.

        Raises:
            RuntimeError: If the Trainer did not get `ckpt_path`, and would begin from the start.
            ValueError: If training would end before the length that the search wants.
        """
        self._core.train._training_begins()
        if self._resumes and not trainer.global_step:
            raise RuntimeError(
                "this trial goes on from a checkpoint, but training would start again from the"
                " beginning: call trainer.fit(..., ckpt_path=callback.ckpt_path)"
            )
        self._take_sigterm_back()
        if self._resumes:
            if self._options is not None:
                self._options.apply()
            _begin_next_epoch(trainer)
            trainer._logger_connector._callback_metrics.update(self._metrics)
            stops = [one for one in trainer.callbacks if isinstance(one, EarlyStopping)]
            if self._checkpoints.is_own and any(
                one.wait_count >= max(one.patience, 1) for one in stops
            ):
                trainer.should_stop = True  # Lightning has forgotten that it had decided so
        self._group = "training"
        self._step, self._epochs = trainer.global_step, float(trainer.current_epoch)
        self._accumulates = self._validates = self._epoch_ended = self._ended = False
        self._validated_at = None
        self._stored_at = self._step if self._resumes else None
        self._stored_whole, self._resumes = True, False
        self._follow_goal(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Return the last metrics, which others may ask for before there are new ones."""
        return {"metrics": dict(self._trainer.callback_metrics) if self._trainer else {}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the metrics for the beginning of training."""
        self._metrics = state_dict["metrics"]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save and stop where the trial is to leave."""
        share = 1.0 if trainer.is_last_batch else (batch_idx + 1) / trainer.num_training_batches
        self._epochs = trainer.current_epoch + share
        # With manual optimization the code may make steps that Lightning does not count.
        counts = pl_module.automatic_optimization or trainer.global_step > 0
        self._accumulates = counts and trainer.global_step == self._step
        self._step = trainer.global_step
        self._validates, self._epoch_ended = _validates_now(trainer, batch_idx), False
        if self._accumulates or not self._core.preempt.should_preempt():
            return  # gradients that are being accumulated would be lost
        if not (self._validates and self._is_goal_reached(trainer)):  # the search needs it
            self._leave(trainer)
        if not self._validates:
            trainer.limit_val_batches = 0  # Lightning would validate before it stops

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave out logged values of single batches."""
        self._take_sigterm_back()
        self._group = None

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on it is the whole validation that is logged."""
        self._group = "validation"

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report to the search, and leave if the trial has to."""
        self._group = "training"
        self._reports.flush()
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        self._validated_at = trainer.global_step
        if self._is_goal_reached(trainer):
            assert self._goal is not None
            # Before it is saved: from that checkpoint training would go on without the validation.
            self._goal.complete(self._reports.validation)
            self._save(trainer)
            self._follow_goal(trainer)
        saved = self._leaves and trainer.is_last_batch  # and again when the epoch has ended
        if not self._accumulates and not saved and self._core.preempt.should_preempt():
            self._leave(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that values logged from here on are of the epoch."""
        self._epoch_ended = True

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave out logged values of single batches."""
        self._take_sigterm_back()
        self._group = None

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on it is the whole test that is logged."""
        self._group = "test"

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let a preemption's SIGTERM pass here, too."""
        self._take_sigterm_back()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the trained model.

        Raises:
            RuntimeError: If the search waits for a validation that did not come.
        """
        self._ended = True
        self._save(trainer)
        if self._is_goal_reached(trainer) and not self._leaves:
            raise RuntimeError(
                "the search waits for a validation at the end of training, and there was none: set"
                " val_check_interval or check_val_every_n_epoch such that one comes then"
            )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let go of the checkpoint that training went on from."""
        self._group = None
        trainer.limit_val_batches = self._limit
        if stage == "fit":
            self._checkpoints.close()

    def _take_sigterm_back(self) -> None:
        """Let a preemption's SIGTERM pass, for when to leave is decided here.

        Lightning's own handler, which is there from after `setup()` on, ends a validation after its
        next batch, and broadcasts from within: between ranks that are at different places.
        """
        if self._on_sigterm is not None:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_metrics(self, metrics: Mapping[str, Any]) -> None:
        assert self._trainer is not None
        if self._group is None or not self._is_chief or self._trainer.sanity_checking:
            return
        step = self._trainer.global_step
        if self._group == "validation":
            self._reports.evaluated(step, metrics)
        elif self._group != "training" or not self._leaves or self._is_due(self._trainer):
            self._reports.report(self._group, step, metrics)
        if self._group == "training":
            self._report_progress(self._trainer)

    def _is_due(self, trainer: Trainer) -> bool:
        """Whether Lightning would log this also if it did not stop."""
        if self._epoch_ended:
            return bool(trainer.is_last_batch)
        stepped = trainer.fit_loop.epoch_loop._batches_that_stepped + 1
        return bool(stepped % (trainer.log_every_n_steps or math.inf) == 0)

    def _report_progress(self, trainer: Trainer) -> None:
        if self._goal is not None:
            self._goal.report_progress(self._position(trainer))
            return
        steps, epochs = _limits(trainer)
        done = max(trainer.global_step / steps, self._epochs / epochs)
        if math.isfinite(min(steps, epochs)):
            self._core.train.report_progress(min(done, 1.0))

    def _on_checkpoint(self, path: Path) -> None:
        """Store what a `ModelCheckpoint` has saved; only the chief hears of it."""
        trainer = self._trainer
        assert trainer is not None
        validates = self._validates and self._validated_at != trainer.global_step
        if self._is_stored(trainer) or (validates and self._is_goal_reached(trainer)):
            return  # from the latter training would go on without the validation
        _wait_until_written(trainer)
        if not path.exists():
            logger.warning("%s is not stored with the trial: it is no path here", path)
            return
        metadata = self._checkpoints.metadata(trainer.global_step)
        with self._core.checkpoint.store_path(metadata) as (folder, _):
            copy = shutil.copytree if path.is_dir() else shutil.copyfile
            copy(path, folder / CHECKPOINT)
        self._stored_at, self._stored_whole = trainer.global_step, self._is_whole(trainer)

    def _is_whole(self, trainer: Trainer) -> bool:
        """Whether other callbacks and schedulers have done at this step what they will do."""
        if trainer.is_last_batch:
            plateaus = any(one.reduce_on_plateau for one in trainer.lr_scheduler_configs)
            return self._ended or (self._epoch_ended and not plateaus)
        return not self._validates or self._validated_at == trainer.global_step

    def _is_stored(self, trainer: Trainer) -> bool:
        whole = self._stored_whole or not self._is_whole(trainer)
        return whole and self._stored_at == trainer.global_step

    def _save(self, trainer: Trainer) -> None:
        """Store a checkpoint of this step, unless an equal one exists. All ranks call."""
        ranks = self._core.distributed
        if trainer.fast_dev_run or ranks.broadcast(self._is_stored(trainer)):
            return
        with ExitStack() as stack:
            folder = None
            if self._is_chief:
                metadata = self._checkpoints.metadata(trainer.global_step)
                stored = self._core.checkpoint.store_path(metadata)
                folder, _ = stack.enter_context(stored)
            trainer.save_checkpoint(Path(ranks.broadcast(folder), CHECKPOINT))
            _wait_until_written(trainer)
        self._stored_at, self._stored_whole = trainer.global_step, self._is_whole(trainer)

    def _leave(self, trainer: Trainer) -> None:
        self._leaves = True
        self._save(trainer)
        _stop(trainer)
        for one in trainer.callbacks:
            # EarlyStopping raises at the end of an epoch without its metric.
            if not trainer.is_last_batch and hasattr(one, "_check_on_train_epoch_end"):
                one._check_on_train_epoch_end = False

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
        steps, epochs = _end(trainer)
        end = self._counted(trainer, steps, epochs, epochs * trainer.num_training_batches)
        self._goal.check(end, "Lightning's Trainer", "its max_steps or max_epochs")

    def _position(self, trainer: Trainer) -> float:
        batches = trainer.fit_loop.total_batch_idx + 1
        return self._counted(trainer, trainer.global_step, self._epochs, batches)

    def _counted(self, trainer: Trainer, steps: float, epochs: float, batches: float) -> float:
        """That many steps, epochs and batches of a rank in the unit of the search."""
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
        return batches * float(size * trainer.world_size)


class _BeforeAverages(Callback):  # type: ignore[misc]
    """Saves before other callbacks make an average the model: training would go on from it.

    Where training has ended, the average is what `StochasticWeightAveraging` was there for.
    """

    def __init__(self, trial: TrialCallback) -> None:
        self._trial = trial

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._trial._leaves or any(
            isinstance(one, WeightAveraging) for one in trainer.callbacks
        ):
            self._trial.on_train_end(trainer, pl_module)


def _begin_next_epoch(trainer: Trainer) -> None:
    """Go on behind an epoch that is complete.

    With `max_steps` Lightning would take it up once more: without batches, and without a validation
    whose metrics `EarlyStopping` insists on.
    """
    loop = trainer.fit_loop
    progress = loop.epoch_progress
    if not progress.current.ready == progress.current.processed > 0:
        return
    if progress.current.completed < progress.current.processed:
        progress.increment_completed()
    for one in (loop, loop.epoch_loop):
        getattr(one, "reset_restart_stage", bool)()  # of Lightning 2.5
    _Loop.restarting.fset(loop, False)  # FitLoop's own setter would not let it be


def _declare_trusted(trainer: Trainer, path: str) -> None:
    """Load the trial's own checkpoint with all that Lightning has saved in it.

    Lightning 2.6 passes on torch's default, which refuses what `save_hyperparameters()` may save.
    """
    load = trainer.strategy.load_checkpoint
    if "weights_only" not in inspect.signature(load).parameters:
        return

    def load_checkpoint(checkpoint_path: str, weights_only: bool | None = None) -> dict[str, Any]:
        if weights_only is None and str(checkpoint_path) == path:
            weights_only = False
        return load(checkpoint_path, weights_only=weights_only)  # type: ignore[no-any-return]

    trainer.strategy.load_checkpoint = load_checkpoint


def _wait_until_written(trainer: Trainer) -> None:
    """Wait for what Lightning writes in the background, and raise what went wrong there."""
    plugin: Any = trainer.strategy.checkpoint_io
    while plugin is not None:
        if isinstance(plugin, AsyncCheckpointIO):
            if plugin._executor is not None:  # of one thread, which takes one after the other
                plugin._executor.submit(bool).result()
            if plugin._error:
                raise plugin._error
        plugin = getattr(plugin, "checkpoint_io", None)


def _limits(trainer: Trainer) -> tuple[float, float]:
    """The largest number of steps, and of epochs, that the Trainer was given."""
    steps, epochs = trainer.max_steps, trainer.max_epochs
    return steps if steps > 0 else math.inf, epochs if (epochs or 0) > 0 else math.inf


def _end(trainer: Trainer) -> tuple[float, float]:
    """The steps and epochs that the Trainer makes at most."""
    steps, epochs = _limits(trainer)
    batches = trainer.num_training_batches
    # With manual optimization the code decides how many steps a batch has.
    if not math.isfinite(batches) or not trainer.lightning_module.automatic_optimization:
        return steps, epochs
    per_epoch = math.ceil(batches / trainer.accumulate_grad_batches)
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
