"""Checkpoints that are written while training goes on: what they hold, when they count."""

from __future__ import annotations

import collections
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from detslurm import pytorch
from detslurm.pytorch import Batch
from detslurm.pytorch.checkpointing._snapshot import Snapshots
from detslurm.store import Store, fold_trial
from tests.pytorch.fitting import fit, in_job
from tests.pytorch.managed import Managed
from tests.pytorch.test_sharded import on_ranks
from tests.pytorch.trials import Regression, same, weights


class TestSnapshots:
    """Copies of states."""

    def test_training_does_not_change_a_copy(self) -> None:
        """Everything is copied, whatever holds it; what states have besides their items stays."""
        net = nn.Linear(2, 2)
        state = {"model": net.state_dict(), "more": [{"a": (torch.ones(2), "x")}, {1, 2}]}
        copy = Snapshots().take(state)
        expected = net.weight.tolist()
        with torch.no_grad():
            net.weight.add_(1)
        state["more"][0]["a"][0].zero_()
        state["more"][1].clear()
        assert copy["model"]["weight"].tolist() == expected
        assert copy["more"][0]["a"][0].tolist() == [1, 1]
        assert copy["more"][1] == {1, 2}
        assert type(copy["model"]) is collections.OrderedDict
        assert copy["model"]._metadata == net.state_dict()._metadata  # type: ignore[attr-defined]

    def test_memory_is_used_again(self) -> None:
        """The next copies lie where the last ones did; other tensors of the same kind don't."""
        snapshots = Snapshots()
        state = [torch.ones(3), torch.zeros(3), torch.ones(3, dtype=torch.bfloat16)]
        first = [tensor.data_ptr() for _ in range(2) for tensor in snapshots.take(state)]
        snapshots.begin()
        again = snapshots.take(state) + snapshots.take(state)
        assert {tensor.data_ptr() for tensor in again} == set(first)
        assert len(set(first)) == 6
        assert [tensor.tolist() for tensor in again] == 2 * [[1] * 3, [0] * 3, [1] * 3]

    def test_tied_weights_stay_one(self) -> None:
        """A checkpoint has them once."""
        tied = torch.ones(3)
        one, other, half = Snapshots().take([tied, tied.detach(), tied[:2]])
        assert one.data_ptr() == other.data_ptr() != half.data_ptr()


class Slow(Regression):
    """Saves in the background; files are written when the test allows it."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        context.experimental.save_in_background()
        self.allowed, self.finished = threading.Event(), []  # type: ignore[var-annotated]

    def write(self) -> None:
        assert self.allowed.wait(60)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        callback = pytorch.PyTorchCallback()
        callback.on_checkpoint_write_end = lambda checkpoint_dir: self.write()  # type: ignore[method-assign]
        callback.on_checkpoint_upload_end = (  # type: ignore[method-assign]
            lambda uuid: self.finished.append(len(self.losses))
        )
        return {"slow": callback}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Future[Any]]:
    """The checkpoints that have been begun."""
    begun: list[Future[Any]] = []
    submit = ThreadPoolExecutor.submit

    def submitted(*args: Any) -> Future[Any]:
        begun.append(submit(*args))
        return begun[-1]

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submitted)
    return begun


def test_it_is_noticed_at_the_next_report(managed: Managed, begun: list[Future[Any]]) -> None:
    """`on_checkpoint_upload_end()` comes with the first report after it was complete."""

    class Watched(Slow):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 9:
                self.allowed.set()
                wait(begun)
            return super().train_batch(batch, epoch_idx, batch_idx)

    trial = in_job(managed, Watched, checkpoint_period=Batch([5]), reporting_period=Batch(2))
    assert trial.finished == [10, 20]
    assert managed.checkpoints() == [5, 20]


def test_an_error_ends_training_at_the_next_report(
    managed: Managed, begun: list[Future[Any]]
) -> None:
    """Not only hours later, when the next checkpoint is due. Nothing of it is left."""

    class Failing(Slow):
        def write(self) -> None:
            super().write()
            raise OSError("disk full")

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 9:
                self.allowed.set()
                wait(begun)
                assert not any((managed.experiment.store.path / "checkpoints").iterdir())
            return super().train_batch(batch, epoch_idx, batch_idx)

    failing = []

    def make(context: Any) -> Any:
        failing.append(Failing(context))
        return failing[0]

    with pytest.raises(OSError, match="disk full"):
        in_job(managed, make, checkpoint_period=Batch([5]), reporting_period=Batch(2))  # type: ignore[arg-type]
    assert len(failing[0].losses) == 10
    assert managed.checkpoints() == []


def test_the_users_error_is_the_one_to_see(
    managed: Managed, caplog: pytest.LogCaptureFixture
) -> None:
    """When training fails, the checkpoint that was begun is still completed; its own error goes to
    the log."""

    class Breaks(Slow):
        broken = False

        def write(self) -> None:
            super().write()
            if self.broken:
                raise OSError("disk full")

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 7:
                threading.Timer(0.2, self.allowed.set).start()
                raise KeyError("a mistake")
            return super().train_batch(batch, epoch_idx, batch_idx)

    class BreaksTwice(Breaks):
        broken = True

    with pytest.raises(KeyError, match="a mistake"):
        in_job(managed, BreaksTwice, checkpoint_period=Batch([5]))
    assert managed.checkpoints() == []
    assert "could not be saved: disk full" in caplog.text
    with pytest.raises(KeyError, match="a mistake"):
        in_job(managed, Breaks, checkpoint_period=Batch([5]))
    assert managed.checkpoints() == [5]


@pytest.mark.parametrize("saving", [False, True])
def test_preemption_waits_for_it(managed: Managed, saving: bool) -> None:
    """A trial that leaves has its checkpoint, and goes on from it. A checkpoint that is begun when
    the preemption comes is the one to leave with, and its callbacks are called."""

    class Preempted(Slow):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            callbacks = super().build_callbacks()
            if saving:
                vars(callbacks["slow"])["on_checkpoint_save_start"] = lambda _: self.preempt()
            return callbacks

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 6:
                self.preempt()
            return super().train_batch(batch, epoch_idx, batch_idx)

        def preempt(self) -> None:
            flag.request_preemption()
            threading.Timer(0.3, self.allowed.set).start()

    with managed.run() as flag, pytorch.init() as context:
        trial = Preempted(context)
        pytorch.Trainer(trial, context).fit(checkpoint_period=Batch([5]) if saving else None)
    saved = 5 if saving else 7
    assert (managed.checkpoints(), trial.finished) == ([saved], [saved])
    latest = managed.view().latest_checkpoint
    assert latest is not None
    assert len(in_job(managed, latest_checkpoint=latest.uuid).losses) == 20 - saved


def test_resumed_is_uninterrupted(managed: Managed) -> None:
    """From each checkpoint that was written while training went on, between two steps of the
    optimizer, too: to the last bit."""

    class Background(Regression):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.experimental.save_in_background()

    with managed.run(), pytorch.init(aggregation_frequency=2) as context:
        whole = Background(context)
        arguments = {"checkpoint_period": Batch(3), "checkpoint_policy": "none"}
        pytorch.Trainer(whole, context).fit(**arguments)  # type: ignore[arg-type]
    assert managed.checkpoints() == [3, 6, 9, 12, 15, 18, 20]
    for checkpoint in managed.view().checkpoints[:-1]:
        folder = managed.experiment.store.path / "checkpoints" / checkpoint.uuid
        again = fit(Regression, 2, max_length=Batch(20), latest_checkpoint=str(folder))
        assert again.losses == whole.losses[checkpoint.steps :]
        assert same(weights(again), weights(whole))


def test_several_ranks(root: Path, tmp_path: Path) -> None:
    """All of them hear of the same checkpoints; going on from each is exact."""
    found = on_ranks(2, "background", tmp_path / "out")
    whole = found["whole"]
    checkpoints = fold_trial(Store(root).experiment(1).trial(1)).checkpoints
    assert [(one.uuid, one.steps) for one in checkpoints] == list(
        zip(whole["checkpoints"], (3, 6, 9, 10), strict=True)
    )
    for steps, resumed in zip((3, 6, 9), found["resumed"], strict=True):
        assert resumed["losses"] == whole["losses"][steps:]
        assert resumed["weights"] == whole["weights"]
