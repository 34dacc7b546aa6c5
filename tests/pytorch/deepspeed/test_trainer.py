"""One process: what a DeepSpeedTrial and its context check, count and report."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from detslurm import InvalidHP, pytorch
from detslurm.errors import InvalidExperimentException
from detslurm.pytorch import deepspeed
from tests.pytorch.deepspeed.settings import config
from tests.pytorch.managed import Managed

pytestmark = pytest.mark.xdist_group("deepspeed in one process")

Make = Callable[..., Any]


@pytest.fixture
def trials() -> Any:
    """The trials, which import DeepSpeed; not when tests are collected."""
    from tests.pytorch.deepspeed import trials

    return trials


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch, root: Path) -> Iterator[None]:
    """A context by hand leaves its rank in the environment, where later tests would find it."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from detslurm.pytorch.deepspeed._connect import restored_environment

    with restored_environment():
        yield


def fit(make: Make, ds_config: dict[str, Any] | None = None, **arguments: Any) -> Any:
    """Train 3 batches of 2 micro-batches; the trial."""
    arguments.setdefault("max_length", pytorch.Batch(3))
    arguments.setdefault("checkpoint_policy", "none")
    with deepspeed.init() as context:
        trial = make(context, ds_config or config())
        deepspeed.Trainer(trial, context).fit(**arguments)
    return trial


def test_epochs_and_batches_are_counted_through(trials: Any) -> None:
    """12 micro-batches are 6 batches of an epoch; no period makes training longer. Each epoch ends
    with a report."""
    windows: list[int] = []

    class Watching(pytorch.PyTorchCallback):
        def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
            windows.append(len(batch_metrics))

    class Watched(trials.Zero):  # type: ignore[misc]
        def build_callbacks(self) -> dict[str, Any]:
            return {"watching": Watching()}

    trial = fit(
        Watched,
        max_length=pytorch.Batch(8),
        validation_period=pytorch.Batch(7),
        checkpoint_period=pytorch.Epoch(3),
    )
    assert trial.calls == [(n // 6, n) for n in range(8) for _ in range(2)]
    assert windows == [6, 1, 1]
    assert trial.context.current_train_batch() == 7
    assert trial.engine.global_steps == 8


def test_the_environment_is_left_as_it_was(trials: Any) -> None:
    """What this process starts later is no rank of this training."""
    fit(trials.Zero)
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE"} & os.environ.keys()


def test_what_the_context_knows(trials: Any) -> None:
    trial = fit(trials.Zero)
    context = trial.context
    assert context.get_train_micro_batch_size_per_gpu() == 4
    assert context.get_num_micro_batches_per_slot() == 2
    assert (context.train_micro_batch_size_per_gpu, context.num_micro_batches_per_slot) == (4, 2)
    assert context.get_global_batch_size() == context.get_per_slot_batch_size() == 8
    assert not context.use_pipeline_parallel
    assert context.models == [trial.engine]


class TestMistakes:
    """Each is named before anything is trained."""

    def test_no_engine(self, trials: Any) -> None:
        class Forgetful(trials.Zero):  # type: ignore[misc]
            def __init__(self, context: Any, ds_config: Any) -> None:
                super().__init__(context, ds_config)
                context.models.clear()

        with pytest.raises(InvalidExperimentException, match="wrap_model_engine"):
            fit(Forgetful)

    def test_an_old_deepspeed(self, trials: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        import deepspeed as theirs

        monkeypatch.setattr(theirs, "__version_minor__", 18)
        monkeypatch.setattr(theirs, "__version__", "0.18.9")
        with pytest.raises(RuntimeError, match=r"0\.19\.8 or later, and this is 0\.18\.9"):
            fit(trials.Zero)

    def test_what_is_no_engine_and_no_unit(self, trials: Any) -> None:
        unit = deepspeed.ModelParallelUnit(0, 1, True, True)
        with deepspeed.init() as context:
            with pytest.raises(InvalidExperimentException, match=r"deepspeed\.init.*\(\).*Linear"):
                context.wrap_model_engine(torch.nn.Linear(1, 1))
            with pytest.raises(InvalidExperimentException, match=r"takes a ModelParallelUnit.*int"):
                context.set_mpu(3)  # type: ignore[arg-type]
            trial = trials.Zero(context, config())
            with pytest.raises(InvalidExperimentException, match="twice"):
                context.wrap_model_engine(trial.engine)
            trial.engine.mpu = object()
            with pytest.raises(InvalidExperimentException, match=r"call\scontext\.set_mpu"):
                deepspeed.Trainer(trial, context).fit(max_length=pytorch.Batch(1))
            context.set_mpu(unit)
            with pytest.raises(InvalidExperimentException, match="called before"):
                context.wrap_mpu(unit)

    def test_nobody_reports(self, trials: Any) -> None:
        def make(context: Any, ds_config: Any) -> Any:
            context.set_mpu(deepspeed.ModelParallelUnit(0, 1, False, True))
            return trials.Zero(context, ds_config)

        with pytest.raises(InvalidExperimentException, match="no rank reports metrics"):
            fit(make)

    def test_another_kind_of_loader(self, trials: Any) -> None:
        """The error says how to allow it, which then trains."""

        class Own(trials.Zero):  # type: ignore[misc]
            def build_training_data_loader(self) -> Any:
                data = super().build_training_data_loader().dataset
                return torch.utils.data.DataLoader(data, batch_size=4)

        with pytest.raises(RuntimeError, match=r"context\.disable_dataset_reproducibility_checks"):
            fit(Own)

        def make(context: Any, ds_config: Any) -> Any:
            context.disable_dataset_reproducibility_checks()
            return Own(context, ds_config)

        assert len(fit(make).losses) == 6

    def test_a_loader_that_repeats(self, trials: Any) -> None:
        """Any iterable will do once the checks are off; DeepSpeed's own has no length."""
        from deepspeed.utils import RepeatingLoader

        class Own(trials.Zero):  # type: ignore[misc]
            def __init__(self, context: Any, ds_config: Any) -> None:
                super().__init__(context, ds_config)
                context.disable_dataset_reproducibility_checks()

            def build_training_data_loader(self) -> Any:
                data = super().build_training_data_loader().dataset
                return RepeatingLoader(torch.utils.data.DataLoader(data, batch_size=4))

            def build_validation_data_loader(self) -> Any:
                return list(super().build_validation_data_loader().get_data_loader())

        assert len(fit(Own, max_length=pytorch.Batch(8)).losses) == 16

    def test_too_little_data_for_one_batch(self, trials: Any) -> None:
        with pytest.raises(
            InvalidExperimentException, match=r"12 micro-batches.*one batch takes\s13"
        ):
            fit(trials.Zero, config(accumulate=13))

    def test_validation_data_without_a_length(self, trials: Any) -> None:
        """Known before anything is trained."""

        class Unsized(trials.Zero):  # type: ignore[misc]
            def __init__(self, context: Any, ds_config: Any) -> None:
                super().__init__(context, ds_config)
                context.disable_dataset_reproducibility_checks()
                made.append(self)

            def build_validation_data_loader(self) -> Any:
                class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
                    def __iter__(self) -> Iterator[int]:
                        return iter(range(3))

                return torch.utils.data.DataLoader(Stream())

        made: list[Any] = []
        with pytest.raises(TypeError, match=r"build_validation_data_loader\(\).*a length"):
            fit(Unsized)
        assert made[0].losses == []

    def test_a_pipeline_whose_checkpoints_cannot_be_loaded(self, trials: Any) -> None:
        with pytest.raises(InvalidExperimentException, match=r"bf16 without ZeRO"):
            fit(partial(trials.Pipeline, stages=1), config(0, "bf16"))

    def test_a_trial_of_another_kind(self, trials: Any) -> None:
        with (
            pytorch.init() as context,
            pytest.raises(TypeError, match="takes a DeepSpeedTrial"),
        ):
            deepspeed.Trainer(object(), context)  # type: ignore[arg-type]


class TestMemory:
    """A configuration that does not fit."""

    @staticmethod
    def greedy(trials: Any, at: int) -> type:
        class Greedy(trials.Zero):  # type: ignore[misc]
            def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
                if batch_idx == at:
                    torch.empty(1 << 50)
                return super().train_batch(dataloader_iter, epoch_idx, batch_idx)

        return Greedy

    def test_before_the_first_batch_it_is_an_invalid_hyperparameter(self, trials: Any) -> None:
        with pytest.raises(SystemExit) as caught:
            fit(self.greedy(trials, 0), config(1))
        assert isinstance(caught.value.__context__, InvalidHP)
        text = str(caught.value.__context__)
        assert text.startswith("there is not enough memory for training with ZeRO stage 1 and")
        assert "allocate" in text

    def test_later_it_is_an_error_that_names_it(self, trials: Any) -> None:
        with pytest.raises(RuntimeError) as caught:
            fit(self.greedy(trials, 1), config(1))
        (note,) = caught.value.__notes__
        assert note.startswith("there is not enough memory for training with ZeRO stage 1 and")


def test_a_resumed_trial_has_fitted_before(trials: Any, managed: Managed) -> None:
    """It is restarted, not given up."""
    seen: list[str] = []

    class Saved(pytorch.PyTorchCallback):
        def on_checkpoint_upload_end(self, uuid: str) -> None:
            seen.append(uuid)

    class Greedy(trials.Zero):  # type: ignore[misc]
        def build_callbacks(self) -> dict[str, Any]:
            return {"saved": Saved()}

        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            if seen:
                torch.empty(1 << 50)
            if batch_idx == 2:
                flag.request_preemption()
            return super().train_batch(dataloader_iter, epoch_idx, batch_idx)

    with managed.run() as flag:
        fit(Greedy)
    with managed.run(), pytest.raises(RuntimeError, match="allocate memory"):
        fit(Greedy, latest_checkpoint=seen[0])


@pytest.mark.parametrize(
    "values",
    [
        (torch.tensor(1.0), torch.tensor(3.0)),
        (torch.tensor([1.0]), torch.tensor(3)),
        (1.0, torch.tensor(3.0)),
        (np.array(1.0), np.array([3.0])),
        ([0.0, 2.0], [2.0, 4.0]),
        (torch.tensor([0.0, 2.0]), torch.tensor([3.0])),
        (2.0, None),
    ],
)
def test_metrics_of_micro_batches_are_averaged(trials: Any, values: tuple[Any, Any]) -> None:
    """Whatever they are."""
    reported: list[dict[str, Any]] = []

    class Reported(pytorch.PyTorchCallback):
        def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
            reported.append(avg_metrics)

    class Given(trials.Zero):  # type: ignore[misc]
        def build_callbacks(self) -> dict[str, Any]:
            return {"reported": Reported()}

        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            super().train_batch(dataloader_iter, epoch_idx, batch_idx)
            return {"given": values[(self.engine.micro_steps + 1) % 2]}

    fit(Given, max_length=pytorch.Batch(1))
    assert reported[0]["given"] == 2


def test_reducers_callbacks_and_stop_requests(trials: Any) -> None:
    """They are PyTorchTrial's."""
    events: list[str] = []

    class Watching(pytorch.PyTorchCallback):
        def on_training_epoch_start(self, epoch_idx: int) -> None:
            events.append(f"epoch {epoch_idx}")

        def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
            events.append(f"workload of {len(batch_metrics)}")

        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            events.append(f"largest {metrics['largest']}")

        def on_checkpoint_upload_end(self, uuid: str) -> None:
            events.append("saved")

        def on_trial_shutdown(self) -> None:
            events.append("over")

    class Watched(trials.Zero):  # type: ignore[misc]
        def __init__(self, context: Any, ds_config: Any) -> None:
            super().__init__(context, ds_config)
            self.largest = context.wrap_reducer(max, "largest", for_training=False)

        def build_callbacks(self) -> dict[str, Any]:
            return {"watching": Watching()}

        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 1:
                self.context.set_stop_requested(True)
            return super().train_batch(dataloader_iter, epoch_idx, batch_idx)

        def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> dict[str, Any]:
            self.largest.update(batch_idx)
            return dict(super().evaluate_batch(dataloader_iter, batch_idx))

    trial = fit(Watched)
    assert events == ["epoch 0", "workload of 2", "largest 4", "saved", "over"]
    assert trial.engine.global_steps == 2


def test_torchs_profiler_and_tensorboard(trials: Any) -> None:
    """The profile steps with every batch, not with every micro-batch."""
    traces: list[int] = []

    class Watched(trials.Zero):  # type: ignore[misc]
        def __init__(self, context: Any, ds_config: Any) -> None:
            super().__init__(context, ds_config)
            context.set_profiler(
                activities=[torch.profiler.ProfilerActivity.CPU],
                schedule=torch.profiler.schedule(wait=1, warmup=1, active=9, repeat=1),
                on_trace_ready=lambda profile: traces.append(profile.step_num),
            )

        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.get_tensorboard_writer().add_scalar(f"at {batch_idx}", 1)
            return super().train_batch(dataloader_iter, epoch_idx, batch_idx)

    context = fit(Watched).context
    assert traces == [3]
    (file,) = context.get_tensorboard_path().iterdir()
    assert b"at 2" in file.read_bytes()


def test_the_whole_data_set_at_once(trials: Any) -> None:
    class AtOnce(trials.Zero):  # type: ignore[misc]
        evaluate_batch = deepspeed.DeepSpeedTrial.evaluate_batch

        def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
            self.seen = len(list(data_loader))
            return {"loss": 1.0}

    assert fit(AtOnce).seen == 5


def test_own_files_of_a_trial(trials: Any, tmp_path: Path) -> None:
    """`save()` and `load()` may be anything."""
    found: list[Any] = []

    class Own(trials.Zero):  # type: ignore[misc]
        def save(self, context: Any, path: Path) -> None:
            (path / f"own{context.distributed.rank}").write_text("mine")

        def load(self, context: Any, load_path: Path) -> None:
            found.append((load_path / "own0").read_text())

        def build_callbacks(self) -> dict[str, Any]:
            return {"saved": Saved()}

    class Saved(pytorch.PyTorchCallback):
        def on_checkpoint_upload_end(self, uuid: str) -> None:
            found.append(uuid)

    fit(Own)
    fit(Own, max_length=pytorch.Batch(4), latest_checkpoint=found[0])
    assert found[1] == "mine"


def test_random_states_of_activation_checkpointing(trials: Any) -> None:
    """A layer that draws from DeepSpeed's own states goes on with them, bit for bit."""
    from deepspeed import checkpointing

    tracker = checkpointing.get_cuda_rng_tracker()
    found: list[str] = []

    class Saved(pytorch.PyTorchCallback):
        def on_checkpoint_upload_end(self, uuid: str) -> None:
            found.append(uuid)

    class Dropping(trials.Zero):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            tracker.reset()
            tracker.add("model-parallel-rng", 5)
            self.drawn: list[float] = []

        def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            with tracker.fork():
                self.drawn.append(torch.rand(1).item())
            return super().train_batch(dataloader_iter, epoch_idx, batch_idx)

        def build_callbacks(self) -> dict[str, Any]:
            return {"saved": Saved()}

    whole = fit(Dropping, max_length=pytorch.Batch(4), checkpoint_period=pytorch.Batch(2))
    resumed = fit(Dropping, max_length=pytorch.Batch(4), latest_checkpoint=found[0])
    assert resumed.drawn == whole.drawn[4:]
    assert len(set(whole.drawn)) == 8

    class Grown(Dropping):
        """Draws from a state, too, that its checkpoint lacks."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            tracker.add("data-parallel-rng", 6)

        def train_batch(self, *args: Any) -> Any:
            with tracker.fork("data-parallel-rng"):
                torch.rand(1)
            return super().train_batch(*args)

    grown = fit(Grown, max_length=pytorch.Batch(4), latest_checkpoint=found[0])
    assert grown.drawn == whole.drawn[4:]
    tracker.reset()


@pytest.fixture
def harness(trials: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A module whose class `Line` is a DeepSpeedTrial; the trials made of it."""
    import sys
    import types

    made: list[Any] = []

    class Line(trials.Zero):  # type: ignore[misc]
        def __init__(self, context: Any) -> None:
            super().__init__(context, config())
            made.append(self)

    module = types.ModuleType("lines")
    module.Line = Line  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lines", module)
    yield made


def test_a_class_by_its_name(harness: list[Any], managed: Managed) -> None:
    """The entrypoint `module:Class` of a DeepSpeedTrial trains it by the configuration."""
    from detslurm.pytorch.harness import main

    with managed.run():
        assert main(["lines:Line"]) == 0
    assert harness[0].engine.global_steps == 20


def test_a_context_by_hand(trials: Any) -> None:
    """Hyperparameters of a configuration, without a Trainer."""
    made = deepspeed.DeepSpeedTrialContext.from_config(
        {
            "hyperparameters": {"lr": {"type": "const", "val": 0.1}, "inner": {"n": 3}},
            "data": {"folder": "digits"},
        }
    )
    assert made.get_hparams() == {"lr": 0.1, "inner": {"n": 3}}
    assert made.get_data_config() == {"folder": "digits"}
    trial = trials.Zero(made, config())
    batches = iter(trial.build_training_data_loader().get_data_loader())
    trial.train_batch(batches, 0, 0)
    with pytest.raises(ValueError, match=r"inner\.lr has a range"):
        deepspeed.DeepSpeedTrialContext.from_config(
            {"hyperparameters": {"inner": {"lr": {"type": "log", "minval": -3, "maxval": 0}}}}
        )


class TestInTheBackground:
    """Checkpoints of one slot that are written while training goes on."""

    def test_a_mistake_does_not_cost_the_one_that_was_begun(
        self, trials: Any, managed: Managed
    ) -> None:
        """One slot alone has nobody to ask: it completes it, and raises the mistake."""

        class Mistaken(trials.Zero):  # type: ignore[misc]
            def __init__(self, context: Any, ds_config: Any) -> None:
                super().__init__(context, ds_config)
                context.experimental.save_in_background()
                self.written = threading.Event()
                plain = self.engine.checkpoint_engine

                def save(state_dict: Any, path: str) -> None:
                    assert self.written.wait(60)
                    torch.save(state_dict, path)

                plain.save = save

            def train_batch(self, *args: Any, **kwargs: Any) -> Any:
                if self.engine.global_steps == 2:
                    threading.Timer(0.1, self.written.set).start()
                    raise KeyError("a mistake")
                return super().train_batch(*args, **kwargs)

        with managed.run(), pytest.raises(KeyError, match="a mistake"):
            fit(Mistaken, checkpoint_period=pytorch.Batch([1]), max_length=None)
        assert managed.checkpoints() == [1]

    def test_another_writer_saves_in_the_foreground(
        self, trials: Any, managed: Managed, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Who knows what it does with a state, and when."""
        from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine

        threads = []

        class Peculiar(TorchCheckpointEngine):  # type: ignore[misc]
            def save(self, state_dict: Any, path: str) -> None:
                threads.append(threading.current_thread())
                super().save(state_dict, path)

        def make(context: Any, ds_config: Any) -> Any:
            context.experimental.save_in_background()
            trial = trials.Zero(context, ds_config)
            trial.engine.checkpoint_engine = Peculiar()
            return trial

        with managed.run(), caplog.at_level("INFO", "detslurm.pytorch"):
            fit(make, checkpoint_period=pytorch.Batch([1]), max_length=None)
        assert managed.checkpoints() == [1, 20]
        assert set(threads) == {threading.current_thread()}
        assert "saved in the foreground: Peculiar writes them" in caplog.text
