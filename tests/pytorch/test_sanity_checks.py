"""Mistakes that raise nothing are said; those that raise say what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from detslurm import pytorch
from detslurm.pytorch import Batch
from detslurm.store import Store, fold_trial
from tests.pytorch import trials
from tests.pytorch.fitting import fit
from tests.pytorch.trials import Regression


class NeverSteps(Regression):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        return self.model(batch[0]).mean()


class NoGradients(NeverSteps):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.context.step_optimizer(self.optimizer)
        return super().train_batch(batch, epoch_idx, batch_idx)


class NotWrapped(Regression):
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        if batch_idx == 0:
            self.other = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.context.step_optimizer(self.other)
        return loss


class ForgetsOne(Regression):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        model = self.context.wrap_model(nn.Linear(1, 1))
        self.context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (NeverSteps, "does not call context.step_optimizer(optimizer)"),
        (NoGradients, "step_optimizer() finds no gradients"),
        (NotWrapped, "step_optimizer() got an optimizer that was not wrapped"),
        (ForgetsOne, "has not called context.step_optimizer() for optimizer 2 of the 2"),
        (Regression, None),
    ],
)
def test_what_learns_nothing_is_said_once(
    root: Path, caplog: pytest.LogCaptureFixture, kind: type[Regression], said: str | None
) -> None:
    """One warning a run, whatever the number of batches; none for a sound trial."""
    fit(kind, max_length=Batch(6), reporting_period=Batch(2))
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == (said is not None)
    assert said is None or said in warned[0]


def test_an_aggregation_longer_than_the_training_is_said(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At its end: a length in epochs does not show it before."""
    for batches, warned in ((4, False), (3, True)):
        caplog.clear()
        fit(max_length=Batch(batches), aggregation=4)
        told = "aggregation_frequency is 4, and there were 3 batches" in caplog.text
        assert told is warned


def test_epochs_of_another_length_are_said(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Twice the batch size: what was one epoch counts as two."""

    class Larger(Regression):
        batch_size = 2 * Regression.batch_size

    fit(max_length=Batch(12))
    (saved,) = fold_trial(Store(root).experiment(1).trial(1)).checkpoints
    for kind, told in ((Regression, False), (Larger, True)):
        caplog.clear()
        fit(kind, max_length=Batch(14), latest_checkpoint=saved.uuid)
        assert ("the training so far counts as 2 epochs, not 1" in caplog.text) is told


def test_callbacks(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Hooks that don't exist are named with those that do; a list of callbacks is refused."""

    class Misspelt(pytorch.PyTorchCallback):
        def on_train_epoch_end(self, epoch_idx: int) -> None:
            raise AssertionError

    class Trial(Regression):
        def build_callbacks(self) -> Any:
            return callbacks

    callbacks: Any = {"c": Misspelt()}
    fit(Trial, max_length=Batch(1))
    assert "Misspelt.on_train_epoch_end() is not a hook" in caplog.text
    assert "did you mean on_training_epoch_end()?" in caplog.text
    for callbacks in ([Misspelt()], None):  # noqa: B007
        with pytest.raises(TypeError, match="must return a dict of PyTorchCallbacks by name, not"):
            fit(Trial, max_length=Batch(1))


def test_a_checkpoint_of_another_model(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's error says what differs, ours which checkpoint it is about."""
    fit(max_length=Batch(1))
    (saved,) = fold_trial(Store(root).experiment(1).trial(1)).checkpoints
    monkeypatch.setattr(trials, "network", lambda: nn.Linear(8, 1))
    with pytest.raises(RuntimeError) as caught:
        fit(max_length=Batch(2), latest_checkpoint=saved.uuid)
    (note,) = caught.value.__notes__
    assert saved.uuid in note and "doesn't fit the models" in note


def test_a_trainer_of_something_else(root: Path) -> None:
    """The class itself, or both arguments in the wrong order."""
    with pytorch.init() as context:
        for wrong in (Regression, context):
            with pytest.raises(TypeError, match=r"Trainer\(MyTrial\(context\), context\)"):
                pytorch.Trainer(wrong, context)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["train_batch", "evaluate_batch"])
def test_a_full_gpu_is_named_with_what_helps(root: Path, method: str) -> None:
    """Whether it is training or a validation that needs too much."""

    class TooLarge(Regression):
        pass

    def fill(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 40.00 GiB")

    setattr(TooLarge, method, fill)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate") as caught:
        fit(TooLarge, max_length=Batch(1))
    (note,) = caught.value.__notes__
    assert note.startswith("CUDA out of memory: a smaller global_batch_size")
