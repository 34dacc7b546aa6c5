"""The class that model code for DeepSpeed derives from."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from detslurm.pytorch._base_trial import BaseTrial
from detslurm.pytorch._data import DataLoader
from detslurm.pytorch.deepspeed._context import DeepSpeedTrialContext
from detslurm.pytorch.deepspeed._universal import load_engine


class DeepSpeedTrial(BaseTrial):
    """DeepSpeed's engines, data, and what to do with one batch; derive from it. The Trainer does
    the rest.

    In `__init__` make models, pass them to `deepspeed.initialize()` and the engines that come of it
    to `context.wrap_model_engine()`.

    Args:
        context: The result of `deepspeed.init()`.

    Example:
        import deepspeed
        import torch

        from detslurm import pytorch
        from detslurm.pytorch import deepspeed as det_deepspeed

        CONFIG = {
            "train_micro_batch_size_per_gpu": 8,
            "optimizer": {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}},
            "zero_optimization": {"stage": 1},
        }


        class Line(det_deepspeed.DeepSpeedTrial):
            def __init__(self, context):
                self.context = context
                model = torch.nn.Linear(1, 1)
                engine, *_ = deepspeed.initialize(
                    model=model, model_parameters=model.parameters(), config=CONFIG
                )
                self.engine = context.wrap_model_engine(engine)

            def build_training_data_loader(self):
                x = torch.linspace(0, 1, 64).reshape(-1, 1)
                data = torch.utils.data.TensorDataset(x, 3 * x)
                return pytorch.DataLoader(data, batch_size=8, shuffle=True)

            def build_validation_data_loader(self):
                return self.build_training_data_loader()

            def loss(self, dataloader_iter):
                x, y = self.context.to_device(next(dataloader_iter))
                return torch.nn.functional.mse_loss(self.engine(x), y)

            def train_batch(self, dataloader_iter, epoch_idx, batch_idx):
                loss = self.loss(dataloader_iter)
                self.engine.backward(loss)
                self.engine.step()
                return {"loss": loss}

            def evaluate_batch(self, dataloader_iter, batch_idx):
                return {"validation_loss": self.loss(dataloader_iter)}


        with det_deepspeed.init() as context:
            trainer = det_deepspeed.Trainer(Line(context), context)
            trainer.fit(max_length=pytorch.Epoch(2))
    """

    trial_context_class = DeepSpeedTrialContext
    _home = "detslurm.pytorch.deepspeed"

    @abc.abstractmethod
    def __init__(self, context: DeepSpeedTrialContext) -> None:
        pass

    @abc.abstractmethod
    def train_batch(
        self, dataloader_iter: Iterator[Any] | None, epoch_idx: int, batch_idx: int
    ) -> torch.Tensor | dict[str, Any]:
        """Train on one micro-batch; of a pipeline, on all of a batch.

        Without a pipeline take a micro-batch from `dataloader_iter`, and call the engine, its
        `backward()` and its `step()`. This method is called `gradient_accumulation_steps` times for
        each batch, unless `context.disable_auto_grad_accumulation()` leaves that to you. With a
        pipeline it is called once: return `{"loss": engine.train_batch(dataloader_iter)}`.

        Args:
            dataloader_iter: This slot's micro-batches, without an end, on the host; None where the
                slot reads no data.
            epoch_idx: The epoch, counted from 0 at the start of training.
            batch_idx: The batch, counted from 0 at the start of training.

        Returns:
            Metrics by name; a bare tensor is the metric `loss`. Those of micro-batches are
            averaged.
        """

    @abc.abstractmethod
    def build_training_data_loader(self) -> DataLoader | None:
        """Return the data to train on, in micro-batches of one slot; None will do where
        `context.set_mpu()` gives this slot no data.
        """

    @abc.abstractmethod
    def build_validation_data_loader(self) -> DataLoader | None:
        """Return the data to validate on, as `build_training_data_loader()` does."""

    def evaluate_batch(
        self, dataloader_iter: Iterator[Any] | None, batch_idx: int
    ) -> dict[str, Any]:
        """Return validation metrics of one micro-batch; of a pipeline, of one batch of them.

        Override this or `evaluate_full_dataset()`, which models that are spread over the slots
        don't allow.

        Args:
            dataloader_iter: This slot's micro-batches; None where the slot reads no data.
            batch_idx: The batch, counted from 0 in each validation.
        """
        raise NotImplementedError

    def save(self, context: DeepSpeedTrialContext, path: Path) -> None:
        """Write this slot's part of a checkpoint to the directory `path`; every slot calls it, with
        the trial's `context`.

        By default each engine saves its own, with the tag `model0`, `model1` and so on.
        """
        for index, engine in enumerate(context.models):
            engine.save_checkpoint(str(path), tag=f"model{index}")

    def load(self, context: DeepSpeedTrialContext, load_path: Path) -> None:
        """Read what `save()` wrote from the directory `load_path`; every slot calls it, with the
        trial's `context`. It may have been saved on another number of slots: what DeepSpeed can't
        load as it is is converted first.

        Raises:
            AssertionError: If an engine finds nothing of its own there.
            InvalidCheckpointException: If DeepSpeed can't go on with it on these slots.
        """
        for index, engine in enumerate(context.models):
            load_engine(context, engine, load_path, f"model{index}")
