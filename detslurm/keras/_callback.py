"""The callback through which Keras' `model.fit()` reports, saves, stops and goes on."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras.callbacks import Callback

from detslurm._base import contract
from detslurm._base.info import get_cluster_info
from detslurm.core import Unit
from detslurm.frameworks.goal import Goal
from detslurm.frameworks.reports import Reports

if TYPE_CHECKING:
    from keras import Model

    from detslurm.core import Context, DistributedContext

logger = logging.getLogger("detslurm.keras")

WEIGHTS = "model.weights.h5"
STATE = "training.json"
"""Keras' file within a checkpoint of the trial, and how far the training was."""


class DeterminedCallback(Callback):  # type: ignore[misc]
    """Connect Keras' `model.fit()` with the trial that it runs in.

    At the end of each epoch the metrics of its validation ("val_loss" and so on) are reported in
    the group "validation", where the searcher's metric is looked for, all others in "training".
    Steps are batches, counted over all epochs. When the trial is to leave, be it for a preemption,
    the time limit, its user or the search, a checkpoint is saved at the end of the batch, and
    `fit()` returns; during a validation, at its end. As with Keras' own BackupAndRestore an epoch
    that was left begins again, with the weights that were saved. Where the search has operations,
    training goes on from one to the next: each is completed, with a checkpoint, by the first
    validation at or after its length.

    Put it behind all callbacks that stop training or change the model. It is for one `fit()`.

    Args:
        core_context: The result of `detslurm.core.init()`.
        checkpoint: The checkpoint to begin with, such as `info.latest_checkpoint`; None for none.
        continue_id: An identifier of this training, such as `info.trial.trial_id`. Training goes
            on from a checkpoint with the same identifier; of other checkpoints it takes the
            weights, and begins with its first epoch.
        train_metrics_report_period: "epoch", the default, or after how many batches training
            metrics are reported.
        steps_per_epoch: As given to `fit()`, where Keras can't know how many batches an epoch has;
            by default it does.
        checkpoint_epochs: After how many epochs a checkpoint is saved; 1 by default, and 0 for
            none but when leaving and at the end of training.

    Raises:
        RuntimeError: From a second `fit()` with it, which no checkpoint could distinguish.
        ValueError: If a period is neither "epoch" nor a number of at least 1, or
            `checkpoint_epochs` is negative.

    Example:
        import detslurm as det
        from detslurm.keras import DeterminedCallback

        info = det.get_cluster_info()  # None outside of a job
        latest, trial = (info.latest_checkpoint, info.trial.trial_id) if info else (None, "by hand")
        with det.core.init() as core:
            callback = DeterminedCallback(core, checkpoint=latest, continue_id=trial)
            model.fit(x, y, epochs=10, validation_data=test, callbacks=[callback])
    """

    def __init__(
        self,
        core_context: Context,
        checkpoint: str | None,
        continue_id: str | int,
        *,
        train_metrics_report_period: str | int = "epoch",
        steps_per_epoch: int | None = None,
        checkpoint_epochs: int = 1,
    ) -> None:
        super().__init__()
        period = train_metrics_report_period
        if period != "epoch" and not (isinstance(period, int) and period > 0):
            raise ValueError(
                f'train_metrics_report_period is "epoch" or a number of batches, not {period!r}'
            )
        if checkpoint_epochs < 0:
            raise ValueError(f"checkpoint_epochs is 0 or more, not {checkpoint_epochs}")
        self._core = core_context
        self._is_chief = core_context.distributed.rank == 0
        self._checkpoint, self._continue_id = checkpoint, continue_id
        self._period = period if isinstance(period, int) else None
        self._per_epoch = steps_per_epoch
        self._checkpoint_epochs = checkpoint_epochs
        self._reports = Reports(core_context.train, None, logger)
        self._goal = Goal.of(core_context)
        self._is_test = contract.TEST_MODE in os.environ
        self._first_epoch: int | None = None  # as Keras had it
        self._epochs = 0  # that are trained
        self._before = self._batches = 0  # trained before this epoch, and by now
        self._saved_at = 0
        self._leaves = False
        self._is_fitting = self._is_used = False

    def save_model(self, model: Model, path: Path, distributed: DistributedContext) -> None:
        """Save the `model` with its optimizer to the directory `path` of a checkpoint, which is on
        the chief's node or a shared file system: override it where more than its weights is needed.
        All ranks of `distributed` call; by default the chief alone saves.
        """
        if distributed.rank == 0:
            model.save_weights(path / WEIGHTS)

    def load_model(self, model: Model, path: Path, distributed: DistributedContext) -> None:
        """Load what `save_model` saved. Arguments as in `save_model`."""
        model.load_weights(path / WEIGHTS)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Load the checkpoint that training goes on from.

        Raises:
            RuntimeError: If it was in a `fit()` before.
            ValueError: If training would end before the length that the search wants.
        """
        if self._is_used:
            raise RuntimeError(
                "this DeterminedCallback has been in a fit(): the next run of the trial could not"
                " know in which of several to go on. Train in one fit() with more epochs"
            )
        self._core.train._training_begins()
        self._is_used = True
        model = self.model
        self._first_epoch, self._leaves, self._is_fitting = model._initial_epoch, False, True
        self._per_epoch = self.params.get("steps") or self._per_epoch
        if self._checkpoint is not None:
            self._load(model, self._checkpoint)
            self._checkpoint = None
        if self._goal is not None:
            self._follow_goal()
            if self._goal.is_over:
                model._initial_epoch = self.params["epochs"]  # it begins none

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Count from here."""
        self._epochs, self._before = epoch, self._batches

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report the period's metrics; save and stop where the trial is to leave."""
        period, length = self._period, self._per_epoch
        # With `steps_per_execution` Keras counts the last ones of an epoch as if they were whole.
        trained = batch + 1 if length is None else min(batch + 1, length)
        before, self._batches = self._batches, self._before + trained
        if period and self._is_chief and self._batches // period > before // period:
            self._reports.report("training", self._batches, logs or {})
        if self._is_test:
            self.model.stop_training = True
        elif trained != length and self._core.preempt.should_preempt():
            self._leave()

    def on_test_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Let the validation be short that Keras makes before it stops."""
        if self._is_fitting and (self._leaves or self._is_test):
            self.model.stop_evaluating = True

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report the epoch; save where it is time to, for the search or for leaving.

        Raises:
            RuntimeError: If the search waits for a metric that the validation did not give.
            ValueError: If training would end before the next length that the search wants.
        """
        if self._leaves:
            return
        self._epochs = epoch + 1
        validation = {k: v for k, v in (logs or {}).items() if k.startswith("val_")}
        if self._is_chief:
            if self._period is None:
                training = {k: v for k, v in (logs or {}).items() if k not in validation}
                self._reports.report("training", self._batches, training)
            if validation:  # with what searches count time by
                time = {"batches": self._batches, "epochs": self._epochs}
                self._reports.report("validation", self._batches, time | validation)
            self._report_progress()
        completes = bool(validation) and self._is_goal_reached()
        if completes and self._goal is not None:
            # Before it is saved: from that checkpoint training would go on without the validation.
            self._goal.complete(validation)
            self._follow_goal()
        # The last one here: Keras may change the weights before `on_train_end`, to averaged ones or
        # to those of the best epoch, and this validation is not of these.
        is_last = self.model.stop_training or self._epochs == self.params["epochs"]
        period = self._checkpoint_epochs
        if completes or is_last or (period and self._epochs % period == 0):
            self._save()
        # Finished training is not left: the next run would train on from the end.
        if not is_last and self._core.preempt.should_preempt():
            self._leave()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Save the trained model.

        Raises:
            RuntimeError: If the search waits for a validation that did not come.
        """
        self.model._initial_epoch, self._is_fitting = self._first_epoch, False
        if self._leaves:
            return
        self._save()
        if self._is_goal_reached():
            raise RuntimeError(
                "the search waits for a validation at the end of training, and there was none: give"
                " validation_data to fit(), and a validation_freq such that one comes then"
            )

    def _load(self, model: Model, checkpoint: str) -> None:
        optimizer = model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)
        rate = None if optimizer is None else float(optimizer.learning_rate)
        with self._core.checkpoint.restore_path(checkpoint) as path:
            file = path / STATE
            state = json.loads(file.read_text()) if file.exists() else {}
            self.load_model(model, path, self._core.distributed)
        trial = info.trial if (info := get_cluster_info()) is not None else None
        is_own = state.get("continue_id") == self._continue_id
        if info is not None and trial is not None and checkpoint == info.latest_checkpoint:
            # In a warm start, it may be that of a trial that has this one's id in another store.
            is_own = is_own and (trial._steps_completed or self._continue_id != trial.trial_id)
        has_same_hparams = trial is not None and trial.continues and not trial._hparams_changed
        is_scheduled = False
        if rate is not None and not (is_own or has_same_hparams):
            try:
                optimizer.learning_rate = rate
            except TypeError:  # a schedule, which goes by the steps that the optimizer has counted
                is_scheduled = True
            except AttributeError:
                pass  # a function, which no checkpoint has
        if is_own or (state and trial is not None and trial._steps_completed):
            self._epochs, self._batches = state["epochs"], state["batches"]
            self._saved_at, model._initial_epoch = self._batches, self._epochs
        elif is_scheduled:  # it starts again, too
            getattr(optimizer, "inner_optimizer", optimizer)._iterations.assign(0)

    def _save(self) -> None:
        """Store a checkpoint, unless this batch has one already. All ranks call."""
        if self._saved_at == self._batches:
            return
        self._saved_at = self._batches
        ranks, model = self._core.distributed, self.model
        with ExitStack() as stack:
            folder = None
            if self._is_chief:
                metadata: dict[str, Any] = {"steps_completed": self._batches}
                folder, _ = stack.enter_context(self._core.checkpoint.store_path(metadata))
                state = {"continue_id": self._continue_id, "epochs": self._epochs}
                (folder / STATE).write_text(json.dumps({**state, "batches": self._batches}))
            self.save_model(model, Path(ranks.broadcast(folder)), ranks)
            ranks.allgather(None)  # every rank has written its part

    def _leave(self) -> None:
        self._leaves = True
        self._save()
        self.model.stop_training = True

    def _report_progress(self) -> None:
        if self._goal is not None:
            self._goal.report_progress(self._position())
        else:
            self._core.train.report_progress(min(self._epochs / self.params["epochs"], 1.0))

    def _is_goal_reached(self) -> bool:
        return self._goal is not None and self._goal.is_reached(self._position())

    def _follow_goal(self) -> None:
        """Stop where the search wants no more. Raise `ValueError` where it wants too much."""
        assert self._goal is not None
        if self._goal.is_over:
            self.model.stop_training = True
        else:
            end = self._counted(
                self.params["epochs"], self.params["epochs"] * (self._per_epoch or math.inf)
            )
            self._goal.check(end, "model.fit()", "its epochs")

    def _position(self) -> float:
        return self._counted(self._epochs, self._batches)

    def _counted(self, epochs: float, batches: float) -> float:
        """That many epochs and batches in the unit of the search."""
        assert self._goal is not None
        if self._goal.unit is Unit.RECORDS:
            raise ValueError(
                "how many records a batch has is not known here: give searcher.max_length in"
                " batches or epochs"
            )
        return epochs if self._goal.unit is Unit.EPOCHS else batches
