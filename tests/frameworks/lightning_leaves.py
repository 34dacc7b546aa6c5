"""Trainings that are left, and go on: python lightning_leaves.py FOLDER prints what differs.

Leaving is decided at a step; nothing else is. What is undisturbed is compared with both parts.
Searches, which decide by themselves, come with a store.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

import detslurm as det
from detslurm._base.contract import TEST_MODE
from detslurm.lightning import TrialCallback
from tests.pytorch.searched import Searched

FOLDER = Path(sys.argv[1])
Event = tuple[Any, ...]
Batch = tuple[torch.Tensor, torch.Tensor]

STEPWISE = {"interval": "step", "frequency": 4}
PER_EPOCH = {"interval": "epoch"}
KINDS: dict[str, dict[str, Any]] = {
    "max_epochs": {"max_epochs": 3},
    "max_steps": {"max_steps": 24},
    "both": {"max_epochs": 3, "max_steps": 24},
    "max_steps, without other checkpoints": {"max_steps": 24, "enable_checkpointing": False},
    "plateaus of steps": {"plateaus": STEPWISE, "val_check_interval": 4, "max_epochs": 3},
    "plateaus of epochs": {"plateaus": PER_EPOCH, "val_check_interval": 4, "max_steps": 24},
    "no epochs": {"val_check_interval": 4, "check_val_every_n_epoch": None, "max_steps": 24},
}
LEAVES = [("batch", 4), ("validation", 4), ("batch", 8), ("validation", 8)]
"""8 steps are an epoch."""


class Net(LightningModule):  # type: ignore[misc]
    """A linear model."""

    def __init__(
        self, plateaus: dict[str, Any] | None = None, rate: float = 0.05, *, halves: bool = False
    ) -> None:
        super().__init__()
        self.layer, self.plateaus = nn.Linear(4, 1), plateaus
        self.rate, self.halves, self.rates = rate, halves, list[float]()

    def on_train_batch_start(self, batch: Batch, index: int) -> None:
        """Note the learning rate."""
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        """The loss of one."""
        return nn.functional.mse_loss(self.layer(batch[0]).squeeze(-1), batch[1])

    def validation_step(self, batch: Batch, index: int) -> None:
        """The same, logged."""
        self.log("val_loss", self.training_step(batch, index))

    def configure_optimizers(self) -> Any:
        """Adam, with a schedule where one is asked for."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.rate)
        if self.halves:
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]
        if self.plateaus is None:
            return optimizer
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        scheduler = {"scheduler": schedule, "monitor": "val_loss", **self.plateaus}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class Loader:
    """Batches that go on where they were."""

    def __init__(self, count: int, seed: int) -> None:
        made = torch.Generator().manual_seed(seed)
        x = torch.randn(count, 4, generator=made)
        self.batches, self.next = list(zip(x.split(8), x.sum(1).split(8), strict=True)), 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self.next % len(self), len(self)):
            self.next = number + 1
            yield self.batches[number]

    def state_dict(self) -> dict[str, int]:
        """The next one's number."""
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there."""
        self.next = state["next"]


class Recorder(Callback):  # type: ignore[misc]
    """Writes down what happens, and says when the trial is to leave."""

    def __init__(self, where: str, step: int) -> None:
        self.events: list[Event] = []
        self.where, self.step, self.leaves = where, step, False

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.events.append(("batch", trainer.current_epoch, trainer.global_step))
        self.leaves |= (self.where, self.step) == ("batch", trainer.global_step)

    def on_validation_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.leaves |= (self.where, self.step) == ("validation", trainer.global_step)

    def on_validation_end(self, trainer: Trainer, *args: Any) -> None:
        if not trainer.sanity_checking:
            loss = float(trainer.callback_metrics["val_loss"])
            self.events.append(("validation", trainer.current_epoch, trainer.global_step, loss))


def train(
    where: str,
    step: int,
    checkpoint: str | None,
    options: dict[str, Any],
    other: int | None = None,
) -> tuple[list[Event], list[str], Net]:
    """What happened, the checkpoints and the model; `other` is a trial with other hyperparameters
    that saved the one that it goes on from."""
    saved: list[str] = []

    @contextlib.contextmanager
    def store_path(metadata: dict[str, Any], **more: Any) -> Iterator[tuple[Path, str]]:
        folder = FOLDER / f"{len(list(FOLDER.iterdir()))}"
        folder.mkdir()
        yield folder, folder.name
        saved.append(str(folder / "checkpoint.ckpt"))

    torch.manual_seed(1)
    recorder = Recorder(where, step)
    options = dict(options)
    with det.core.init() as core:
        callback = TrialCallback(core)
        core.checkpoint.store_path = store_path  # type: ignore[method-assign,assignment]
        core.preempt.should_preempt = lambda *args, **more: recorder.leaves  # type: ignore[method-assign]
        callback.ckpt_path, callback._resumes = checkpoint, checkpoint is not None
        callback._checkpoints.other_hparams = other
        callbacks = [recorder, callback, EarlyStopping("val_loss", patience=9)]
        if options.get("enable_checkpointing", True):
            callbacks.append(ModelCheckpoint(FOLDER / "of Lightning", save_top_k=-1))
        given = {
            name: options.pop(name) for name in {"plateaus", "rate", "halves"} & options.keys()
        }
        model = Net(**given)
        trainer = Trainer(
            accelerator="cpu", enable_progress_bar=False, enable_model_summary=False, logger=False,
            callbacks=callbacks, **options,
        )  # fmt: skip
        validation = DataLoader(Loader(16, 2).batches, batch_size=None)
        trainer.fit(model, Loader(64, 1), validation, ckpt_path=checkpoint)
    return recorder.events, saved, model


def rates(other: int | None) -> list[float]:
    """Those of the second of two epochs: the first one had 0.1, the model is made with 0.01, and a
    schedule halves them."""
    halved: dict[str, Any] = {"max_epochs": 2, "halves": True}
    _, saved, _ = train("batch", 8, None, {**halved, "rate": 0.1})
    _, _, model = train("nowhere", 0, saved[-1], {**halved, "rate": 0.01}, other)
    return sorted({round(rate, 6) for rate in model.rates})


def search(epochs: int) -> tuple[Searched, list[int], list[str]]:
    """A search of that length, the steps of its validations, and what the Trainer has raised."""
    recorder = Recorder("nowhere", 0)
    errors: list[str] = []

    def script() -> None:
        info = det.get_cluster_info()
        assert info is not None
        with det.core.init() as core:
            callback = TrialCallback(core)
            saving = ModelCheckpoint(save_top_k=-1)
            trainer = Trainer(
                accelerator="cpu", enable_progress_bar=False, enable_model_summary=False,
                max_epochs=2, min_epochs=2, default_root_dir=FOLDER / "of the search",
                callbacks=[recorder, callback, EarlyStopping("val_loss", patience=9), saving],
            )  # fmt: skip
            model = Net(rate=info.trial.hparams["learning_rate"])
            validation = DataLoader(Loader(16, 2).batches, batch_size=None)
            try:
                trainer.fit(model, Loader(64, 1), validation, ckpt_path=callback.ckpt_path)
            except ValueError as err:
                errors.append(str(err))
                raise

    searcher = {
        "name": "async_halving", "metric": "val_loss", "max_length": {"epochs": epochs},
        "num_rungs": 2, "divisor": 2, "max_trials": 2, "max_concurrent_trials": 1,
    }  # fmt: skip
    space = {"learning_rate": {"type": "categorical", "vals": [0.0001, 0.05]}}
    root = FOLDER / f"search of {epochs}"
    found = Searched(root, pytest.MonkeyPatch(), searcher, space, max_restarts=0)
    found.run(script)
    steps = [event[2] for event in recorder.events if event[0] == "validation"]
    return found, steps, errors


def searches() -> dict[str, Any]:
    """What is wrong with two trials of which one goes on, from its checkpoint, and with one that is
    to train more than the Trainer does."""
    found, steps, _ = search(2)
    trials = [found.trial(index) for index in (0, 1)]
    saved = sorted((trial.steps, trial.checkpoints[-1].steps) for trial in trials)
    wrong: dict[str, Any] = {}
    if (found.view().state, saved, steps) != ("COMPLETED", [(8, 8), (16, 16)], [8, 8, 16]):
        wrong["search"] = [found.view().state, saved, steps]
    found, _, errors = search(9)
    said = "but Lightning's Trainer ends after 2: raise its max_steps"
    if found.view().state != "ERROR" or said not in "".join(errors):
        wrong["search for more"] = [found.view().state, errors]
    return wrong


def tested(options: dict[str, Any]) -> list[Any]:
    """Where a training of several epochs trains and validates when it is only tried."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TEST_MODE, "1")
        events, saved, _ = train("nowhere", 0, None, options)
    return [[(kind, step) for kind, _, step, *_ in events], len(saved)]


def main() -> None:
    """Print what went wrong, or was not the same."""
    wrong = searches()
    for name in ("max_epochs", "max_steps"):
        if (found := tested(KINDS[name])) != [[("batch", 1), ("validation", 1)], 1]:
            wrong[f"{name}, test mode"] = found
    if rates(None) != [0.05] or rates(1) != [0.005]:
        wrong["learning rates"] = f"{rates(None)} {rates(1)}"
    for name, options in KINDS.items():
        events, _, undisturbed = train("nowhere", 0, None, options)
        weights = undisturbed.layer.weight.flatten().tolist()
        for where, step in LEAVES:
            first, saved, _ = train(where, step, None, options)
            try:
                second, _, model = train("nowhere", 0, saved[-1], options)
            except Exception as err:
                wrong[f"{name}: {where} {step}"] = repr(err)
                continue
            end = model.layer.weight.flatten().tolist()
            if first + second != events or end != weights:
                wrong[f"{name}: {where} {step}"] = f"{first} {second} {end} for {events} {weights}"
    print(json.dumps(wrong))


if __name__ == "__main__":
    main()
