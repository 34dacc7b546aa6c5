"""Callbacks: what is called when, on restarts, and what becomes of their state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import detslurm as det
from detslurm import pytorch
from detslurm.pytorch import Batch
from detslurm.store import Store, fold_trial
from tests.pytorch.fitting import fit
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression


class Recorder(pytorch.PyTorchCallback):
    """Writes down every call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.epochs = 0

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        self.calls.append(f"startup {first_batch_idx} {'from' if checkpoint_uuid else 'fresh'}")

    def on_training_start(self) -> None:
        self.calls.append("training start")

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        self.calls.append(f"epoch {epoch_idx} start")

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        self.epochs += 1
        self.calls.append(f"epoch {epoch_idx} end")

    def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
        assert {"batches", "epochs"} <= avg_metrics.keys()
        own = sorted(avg_metrics.keys() - {"batches", "epochs"})
        self.calls.append(f"workload of {len(batch_metrics)} {own}")

    def on_validation_start(self) -> None:
        self.calls.append("validation start")

    def on_validation_epoch_start(self) -> None:
        self.calls.append("validation epoch start")

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        self.calls.append(f"validation epoch end {len(outputs)}")

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.calls.append(f"validation end {sorted(metrics)}")

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        self.calls.append(f"load start {checkpoint['mine']}")

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = "kept"
        self.calls.append("save start")

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        self.calls.append("save end")

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        assert (Path(checkpoint_dir) / "state_dict.pth").exists()
        (Path(checkpoint_dir) / "mine.txt").write_text("x")
        self.calls.append("write end")

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.calls.append("upload end")

    def on_trial_shutdown(self) -> None:
        self.calls.append("shutdown")

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]


class Other(pytorch.PyTorchCallback):
    """Called before the recorder, with a state of its own."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        self.recorder.calls.append("other")

    def state_dict(self) -> dict[str, Any]:
        return {"other": True}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert state_dict == {"other": True}


class Recorded(Regression):
    """Epochs of 3 batches; says when its loaders are built."""

    records = 12

    def __init__(self, context: Any, preempt_at: int | None = None, flag: Any = None) -> None:
        super().__init__(context)
        self.recorder, self.preempt_at, self.flag = Recorder(), preempt_at, flag

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"other": Other(self.recorder), "recorder": self.recorder}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        self.recorder.calls.append("loaders")
        return super().build_training_data_loader()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.recorder.calls.append(f"batch {batch_idx}")
        if batch_idx + 1 == self.preempt_at:
            self.flag.request_preemption()
        return super().train_batch(batch, epoch_idx, batch_idx)


def run(managed: Managed, preempt_at: int | None) -> Recorded:
    """The next run of a trial of 6 batches that validates every 4."""
    managed.config["searcher"]["max_length"] = {"batches": 6}
    with managed.run() as flag, pytorch.init() as context:
        trial = Recorded(context, preempt_at, flag)
        info = det.get_cluster_info()
        assert info is not None
        pytorch.Trainer(trial, context).fit(
            validation_period=Batch(4),
            checkpoint_policy="none",
            latest_checkpoint=info.latest_checkpoint,
        )
    return trial


VALIDATION = [
    "validation start", "validation epoch start", "validation epoch end 4",
    "validation end ['loss']",
]  # fmt: skip
SAVING = ["save start", "save end", "write end", "upload end"]


def test_the_order_of_calls_over_restarts(managed: Managed) -> None:
    """Preempted in the middle of an epoch and at the end of one: each epoch starts and ends once,
    every run starts up and shuts down."""
    first, second, third = run(managed, 2), run(managed, 3), run(managed, None)
    assert first.recorder.calls == [
        "other", "startup 0 fresh", "loaders", "training start",
        "epoch 0 start", "batch 0", "batch 1", "workload of 2 ['loss']", *SAVING, "shutdown",
    ]  # fmt: skip
    assert second.recorder.calls == [
        "other", "startup 2 from", "loaders", "load start kept", "training start",
        "batch 2", "epoch 0 end", "workload of 1 ['loss']", *SAVING, "shutdown",
    ]  # fmt: skip
    assert third.recorder.calls == [
        "other", "startup 3 from", "loaders", "load start kept", "training start",
        "epoch 1 start", "batch 3", "workload of 1 ['loss']", *VALIDATION,
        "batch 4", "batch 5", "epoch 1 end", "workload of 2 ['loss']", *VALIDATION, *SAVING,
        "shutdown",
    ]  # fmt: skip
    assert third.recorder.epochs == 2
    assert third.context.get_initial_batch() == 3


def test_what_a_callback_writes_is_part_of_the_checkpoint(managed: Managed) -> None:
    """on_checkpoint_write_end comes before the checkpoint is sealed."""
    run(managed, None)
    latest = managed.view().latest_checkpoint
    assert latest is not None and "mine.txt" in latest.resources


def test_shutdown_is_called_after_errors(root: Path) -> None:
    """Whatever happens in training, or before; also when another callback's shutdown fails. The
    last one is the first."""
    calls: list[str] = []

    class Leaving(pytorch.PyTorchCallback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
            if self.name == "e":
                raise OSError("no connection")

        def on_trial_shutdown(self) -> None:
            calls.append(self.name)
            if self.name == "b":
                raise OSError("can't say goodbye")

    class Interrupted(Regression):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {name: Leaving(name) for name in "ac"}

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            raise KeyboardInterrupt

    class NoData(Interrupted):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {name: Leaving(name) for name in "abc"}

        def build_training_data_loader(self) -> pytorch.DataLoader:
            raise OSError("no data")

    class Unconnected(Regression):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {name: Leaving(name) for name in "de"}

    with pytest.raises(KeyboardInterrupt):
        fit(Interrupted, max_length=Batch(1))
    with pytest.raises(OSError, match="say goodbye") as caught:
        fit(NoData, max_length=Batch(1))
    assert str(caught.value.__context__) == "no data"
    with pytest.raises(OSError, match="no connection"):
        fit(Unconnected, max_length=Batch(1))
    assert calls == ["c", "a", "c", "b", "a", "d"]
    assert fold_trial(Store(root).experiment(1).trial(1)).state == "ERROR"


def test_full_data_set_evaluation_has_no_batches(root: Path) -> None:
    """The calls around the whole validation come, those around its batches don't."""
    recorder = Recorder()

    class Whole(Regression):
        evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

        def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
            return {"count": sum(len(x) for x, _ in data_loader)}

        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"recorder": recorder}

    fit(Whole, max_length=Batch(1))
    calls = [call for call in recorder.calls if call.startswith("validation")]
    assert calls == ["validation start", "validation end ['count']"]


def test_arguments_come_by_their_names(root: Path) -> None:
    """Whatever their order is; names of the callback's own get them in the documented order."""
    seen: dict[str, Any] = {}

    class Reversed(pytorch.PyTorchCallback):
        def on_trial_startup(  # type: ignore[override]
            self, checkpoint_uuid: Any, first_batch_idx: Any
        ) -> None:
            seen["startup"] = (first_batch_idx, checkpoint_uuid)

        def on_training_workload_end(  # type: ignore[override]
            self, batch_metrics: Any, avg_metrics: Any
        ) -> None:
            seen["workload"] = (type(avg_metrics), type(batch_metrics))

        def on_checkpoint_upload_end(self, *, uuid: str) -> None:  # type: ignore[override]
            seen["uuid"] = len(uuid)

        def on_validation_end(self, found: dict[str, Any]) -> None:
            seen["validation"] = list(found)

    class Trial(Regression):
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"reversed": Reversed()}

    fit(Trial, max_length=Batch(1))
    assert seen == {
        "startup": (0, None),
        "workload": (dict, list),
        "uuid": 36,
        "validation": ["loss"],
    }


def test_older_and_wrong_callbacks(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """on_training_epoch_start without the epoch is called, with a warning; what is no callback is
    refused."""
    called = []

    class Older(pytorch.PyTorchCallback):
        def on_training_epoch_start(self) -> None:  # type: ignore[override]
            called.append(1)

    class Trial(Regression):
        def build_callbacks(self) -> Any:
            return {"older": Older()}

    class Wrong(Regression):
        def build_callbacks(self) -> Any:
            return {"wrong": 5}

    fit(Trial, max_length=Batch(13))
    assert len(called) == 2
    assert "should take the number of the epoch" in caplog.text
    with pytest.raises(TypeError, match="'wrong' is a int"):
        fit(Wrong, max_length=Batch(1))
