"""What a trial asks of its context: wrapping, gradients, mixed precision, questions, errors."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from detslurm import errors, pytorch
from detslurm.core import DistributedContext
from detslurm.experimental.tensorboard.metric_writers.pytorch import TorchWriter
from detslurm.pytorch import Batch, LRScheduler
from detslurm.pytorch._rng import seed_all
from detslurm.store import Store, fold_trial
from detslurm.store.artifacts import read_artifacts
from tests.pytorch.fitting import fit
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression, same, weights

Context = pytorch.PyTorchTrialContext
Mode = LRScheduler.StepMode


class TestQuestions:
    """Hyperparameters, batch sizes, positions, identities."""

    def test_hyperparameters(self, root: Path) -> None:
        """They are what init() was given; an absent one is a ValueError that lists the others."""
        with pytorch.init(hparams={"lr": 0.1, "width": 3}) as context:
            assert context.get_hparam("lr") == 0.1
            assert context.get_hparams() == {"lr": 0.1, "width": 3}
            with pytest.raises(ValueError, match=r"Could not find name 'x'.*lr, width"):
                context.get_hparam("x")
            with pytest.raises(ValueError, match="global_batch_size, which is not set"):
                context.get_global_batch_size()
        with pytorch.init() as context, pytest.raises(ValueError, match="hparams="):
            context.get_hparam("lr")

    def test_batch_sizes(self, caplog: pytest.LogCaptureFixture) -> None:
        """A slot's part of the global batch, rounded down with a warning."""
        context = made({"global_batch_size": 10}, slots=4)
        assert (context.get_global_batch_size(), context.get_per_slot_batch_size()) == (10, 2)
        assert "not a multiple of 4 slots: 8 records" in caplog.text
        with pytest.raises(errors.InvalidExperimentException, match="at least one record"):
            made({"global_batch_size": 3}, slots=4)

    def test_configuration(self, managed: Managed) -> None:
        """The job's in a job, init()'s otherwise; get_data_config is its `data` section."""
        managed.config["data"] = {"path": "/data"}
        with managed.run(), pytorch.init(exp_conf={"data": {"path": "ignored"}}) as context:
            assert context.get_data_config() == {"path": "/data"}
            assert context.get_experiment_config()["searcher"]["metric"] == "loss"
            assert context.get_trial_id() == managed.trial.id
            assert context.get_trial_seed() == 11
            assert context.get_experiment_id() == managed.experiment.id
            with pytest.raises(ValueError, match="hyperparameters"):
                context.get_hparams()

    def test_configuration_by_hand(self, root: Path) -> None:
        """There is none unless it is given; nor is there a seed."""
        with pytorch.init() as context:
            with pytest.raises(ValueError, match="exp_conf"):
                context.get_experiment_config()
            with pytest.raises(errors.InternalException, match="outside of a job"):
                context.get_trial_seed()

    def test_positions(self, root: Path) -> None:
        """Epochs are those of the loader; before training there are none."""
        seen = []

        class Curious(Regression):
            records = 12

            def __init__(self, context: Any) -> None:
                super().__init__(context)
                for ask in (context.is_epoch_start, context.current_train_batch):
                    with pytest.raises(errors.InternalException, match="not begun"):
                        ask()

            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                c = self.context
                seen.append((c.current_train_epoch(), c.is_epoch_start(), c.is_epoch_end()))
                assert (epoch_idx, batch_idx) == (c.current_train_epoch(), c.current_train_batch())
                return super().train_batch(batch, epoch_idx, batch_idx)

        fit(Curious, max_length=Batch(4))
        assert seen == [(0, True, False), (0, False, False), (0, False, True), (1, True, False)]

    def test_stop_requests_are_bools(self, root: Path) -> None:
        """Anything else is an AssertionError."""
        with pytorch.init() as context:
            assert context.get_stop_requested() is False
            with pytest.raises(AssertionError, match="True or False"):
                context.set_stop_requested(1)  # type: ignore[arg-type]

    def test_tensorboard(self, root: Path) -> None:
        """The writer's files are in the run's TensorBoard directory, complete at every report; its
        images and histograms are artifacts of the trial, too."""

        class Writing(Regression):
            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                writer = self.context.get_tensorboard_writer()
                writer.add_scalar(f"at {batch_idx}", 1)
                writer.add_image("picture", torch.zeros(3, 4, 4), batch_idx)
                writer.add_histogram("weights", torch.arange(9.0), batch_idx)
                writer.add_histogram("nowhere", torch.arange(9.0))
                return super().train_batch(batch, epoch_idx, batch_idx)

        with pytorch.init() as context:
            pytorch.Trainer(Writing(context), context).fit(max_length=Batch(3))
            writer = context.get_tensorboard_writer()
            assert writer is context.get_tensorboard_writer()
            (file,) = context.get_tensorboard_path().iterdir()
            assert b"at 2" in file.read_bytes()
            writer.close()
        found = read_artifacts(Store(root).experiment(1).trial(1).path)
        kept = {name: [one.steps for one in some] for name, some in found.items()}
        assert kept == {"picture": [0, 1, 2], "weights": [0, 1, 2]}

    @pytest.mark.parametrize(("at_first", "then"), [(True, False), (False, True)])
    def test_tensorboard_can_be_switched_off(
        self, managed: Managed, at_first: bool, then: bool
    ) -> None:
        """Then no metrics are written to event files and nothing is stored."""
        with managed.run(), pytorch.init(enable_tensorboard_logging=at_first) as context:
            assert context.get_enable_tensorboard_logging() is at_first
            context.set_enable_tensorboard_logging(then)
            assert context.get_enable_tensorboard_logging() is then
            with pytest.raises(AssertionError, match="True or False"):
                context.set_enable_tensorboard_logging(1)  # type: ignore[arg-type]
            pytorch.Trainer(Regression(context), context).fit(max_length=Batch(3))
        stored = managed.experiment.store.path / "checkpoints" / "tensorboard"
        assert bool(list(stored.rglob("*tfevents*"))) is then


def made(hparams: dict[str, Any] | None = None, slots: int = 1, aggregation: int = 1) -> Context:
    """A context by itself."""
    return Context(
        None, None, hparams, slots, 0, None, aggregation, 0, False,
        distributed=DistributedContext(),
    )  # fmt: skip


class TestWrapping:
    """Calls that make no sense are refused with the way out."""

    def test_optimizers(self) -> None:
        """Passes, contradictions, aggregation without zeroing."""
        context = made(aggregation=2)
        optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
        with pytest.raises(errors.InvalidExperimentException, match="1 or more, not 0"):
            context.wrap_optimizer(optimizer, backward_passes_per_step=0)
        context.wrap_optimizer(optimizer, average_aggregated_gradients=True)
        with pytest.raises(errors.InvalidExperimentException, match="same for all optimizers"):
            context.wrap_optimizer(optimizer, average_aggregated_gradients=False)
        with pytest.raises(errors.InvalidExperimentException, match="auto_zero_grads=True"):
            context.step_optimizer(optimizer, auto_zero_grads=False)
        with pytest.raises(errors.InvalidExperimentException, match="1 or more, not 0"):
            made(aggregation=0)

    def test_schedulers(self) -> None:
        """The original comes back; its optimizer must be wrapped; plateaus need a metric."""
        context = made()
        optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        with pytest.raises(errors.InvalidExperimentException, match="wrap_optimizer"):
            context.wrap_lr_scheduler(scheduler, Mode.STEP_EVERY_BATCH)
        context.wrap_optimizer(optimizer)
        assert context.wrap_lr_scheduler(scheduler, Mode.STEP_EVERY_BATCH) is scheduler
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        with pytest.raises(errors.InvalidExperimentException, match="MANUAL_STEP"):
            context.wrap_lr_scheduler(plateau, Mode.STEP_EVERY_EPOCH)
        context.wrap_lr_scheduler(plateau, Mode.MANUAL_STEP)

    def test_scalers(self) -> None:
        """Before models, one only, and steps get the one that was wrapped."""
        context = made()
        optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
        scaler = context.wrap_scaler(torch.amp.GradScaler("cpu"))
        for again in (lambda: context.wrap_scaler(scaler), context.experimental.use_amp):
            with pytest.raises(errors.InvalidExperimentException, match="already"):
                again()
        with pytest.raises(errors.InvalidExperimentException, match="pass scaler="):
            context.step_optimizer(optimizer)
        with pytest.raises(errors.InvalidExperimentException, match="not wrapped"):
            context.step_optimizer(optimizer, scaler=torch.amp.GradScaler("cpu"))
        late = made()
        late.wrap_model(nn.Linear(1, 1))
        with pytest.raises(errors.InvalidExperimentException, match="before wrap_model"):
            late.wrap_scaler(scaler)
        with pytest.raises(errors.InvalidExperimentException, match="before wrap_model"):
            late.experimental.use_amp()

    def test_apex(self, caplog: pytest.LogCaptureFixture) -> None:
        """Disabled it changes nothing; what has no counterpart is named once, what is wrong is
        refused."""
        context, again = made(), made()
        assert context.configure_apex_amp([1], [2], enabled=False) == ([1], [2])
        assert context.configure_apex_amp([1], [2], opt_level="O0") == ([1], [2])
        for arguments in ({"opt_level": "O4"}, {"loss_scale": "much"}, {"num_losses": 0}):
            with pytest.raises(errors.InvalidExperimentException, match=next(iter(arguments))):
                context.configure_apex_amp([1], [2], **arguments)
        assert not caplog.messages
        context.configure_apex_amp(
            [1], [2], opt_level="O2", master_weights=True, keep_batchnorm_fp32="True"
        )
        (warned,) = caplog.messages
        assert "no counterpart of keep_batchnorm_fp32, master_weights" in warned
        with pytest.raises(errors.InvalidExperimentException, match="scaler already"):
            context.configure_apex_amp([1], [2])
        again.configure_apex_amp([1], [2], max_loss_scale=8.0)
        assert again._amp.scaler.get_scale() == 8.0


@pytest.mark.parametrize(
    ("given", "configured", "expected"),
    [(None, None, 4), (False, None, 8), (None, False, 8), (True, False, 4)],
)
def test_gradients_are_added_or_averaged(
    root: Path, given: bool | None, configured: bool | None, expected: float
) -> None:
    """average_aggregated_gradients=False leaves the sum; the configuration says it for those that
    don't."""
    sums = []

    class Summed(Regression):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.wrap_optimizer(self.optimizer, average_aggregated_gradients=given)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = self.model(batch[0]).sum()
            self.context.backward(loss)
            self.context.step_optimizer(
                self.optimizer, clip_grads=lambda p: sums.append(float(p[-1].grad.sum()))
            )
            return loss

    said = {} if configured is None else {"average_aggregated_gradients": configured}
    with pytorch.init(exp_conf={"optimizations": said}, aggregation_frequency=2) as context:
        pytorch.Trainer(Summed(context), context).fit(max_length=Batch(2), checkpoint_policy="none")
    assert sums == [expected]


def test_gradients_are_those_of_torch() -> None:
    """backward() takes what a tensor's takes; step_optimizer() leaves gradients on request."""
    context = made()
    x = torch.ones(2, requires_grad=True)
    optimizer = context.wrap_optimizer(torch.optim.SGD([x], 0.5))
    context.backward(x * 3, gradient=torch.tensor([1.0, 2.0]))
    context.step_optimizer(optimizer, auto_zero_grads=False)
    assert x.grad is not None and x.grad.tolist() == [3, 6]
    assert x.tolist() == [-0.5, -2]
    context.step_optimizer(optimizer)
    assert [p.grad for p in (x,)] == [None]
    loss = (x**3).sum()
    with pytest.warns(UserWarning, match="reference cycle"):
        context.backward(loss, create_graph=True)
    assert x.grad.requires_grad
    x.grad = None
    context.backward(loss, retain_graph=True)
    context.backward(loss)
    with pytest.raises(RuntimeError, match="second time"):
        context.backward(loss)


@pytest.mark.parametrize(("moved", "expected"), [(True, torch.Tensor), (False, np.ndarray)])
def test_batches_stay_where_they_are_on_request(root: Path, moved: bool, expected: type) -> None:
    """disable_auto_to_device leaves arrays as they come from the loader."""
    kinds = set()

    class Raw(Regression):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            if not moved:
                context.experimental.disable_auto_to_device()

        def build_training_data_loader(self) -> Any:
            return pytorch.DataLoader(
                list(range(8)), batch_size=2, collate_fn=lambda items: np.array(items)
            )

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            kinds.add(type(batch))
            assert isinstance(self.context.to_device(batch), torch.Tensor)
            return super().train_batch((torch.ones(2, 8), torch.ones(2, 1)), epoch_idx, batch_idx)

    fit(Raw, max_length=Batch(2))
    assert kinds == {expected}


class Compiled(Regression):
    """Compiled by all of torch.compile but its last stage, which needs a C++ compiler."""

    how = "outside"

    def __init__(self, context: Any) -> None:
        wrap = context.wrap_model
        if self.how == "inside":
            context.wrap_model = lambda net: wrap(torch.compile(net, backend="aot_eager"))
        super().__init__(context)
        if self.how == "outside":
            self.model = torch.compile(self.model, backend="aot_eager")
        if self.how == "in place":
            self.model.compile(backend="aot_eager")


@pytest.mark.parametrize("how", ["outside", "inside", "in place"])
def test_compiled_models(root: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """They train as plain ones, with aggregated gradients, too, and each goes on from the other's
    checkpoint."""
    monkeypatch.setattr(Compiled, "how", how)
    ends: list[list[torch.Tensor]] = []
    for number, first, second in ((1, Regression, Compiled), (3, Compiled, Regression)):
        seed_all(1)
        fit(first, 2, max_length=Batch(3))
        (latest,) = fold_trial(Store(root).experiment(number).trial(number)).checkpoints
        trial = fit(second, 2, max_length=Batch(6), latest_checkpoint=latest.uuid)
        assert len(trial.losses) == 3
        ends.append(weights(trial))
    assert same(*ends)


def test_the_profiler_of_torch(root: Path) -> None:
    """set_profiler's profile steps with every batch, and ends with training."""
    traces: list[int] = []

    class Profiled(Regression):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.set_profiler(
                activities=[torch.profiler.ProfilerActivity.CPU],
                schedule=torch.profiler.schedule(wait=1, warmup=1, active=9, repeat=1),
                on_trace_ready=lambda profile: traces.append(profile.step_num),
            )

    fit(Profiled, max_length=Batch(5))
    assert traces == [5]


class TestInit:
    """Who the ranks are, and what is seeded."""

    def test_a_job_seeds_everything(self, managed: Managed) -> None:
        """Python, numpy and torch, with the trial's seed."""
        import random

        drawn = []
        for _ in range(2):
            with managed.run(), pytorch.init():
                drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
        assert drawn[0] == drawn[1]

    def test_several_slots_need_a_launcher(
        self, managed: Managed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The error names one."""
        with managed.run():
            monkeypatch.setenv("DET_SLOT_IDS", "[0, 1]")
            with pytest.raises(ValueError, match=r"launch\.torch_distributed"), pytorch.init():
                pass

    def test_horovod_that_is_not_there(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Training on without it would be wrong."""
        monkeypatch.setenv("USE_HOROVOD", "1")
        monkeypatch.setitem(sys.modules, "horovod.torch", None)
        with (
            pytest.raises(ValueError, match=r"Horovod can't be used.*docs/pytorch"),
            pytorch.init(),
        ):
            pass

    @pytest.mark.parametrize(
        ("enabled", "configured", "measures"),
        [(False, [], False), (True, [], True), (False, [True, False], False)],
    )
    def test_profiling(
        self,
        root: Path,
        caplog: pytest.LogCaptureFixture,
        enabled: bool,
        configured: list[bool],
        measures: bool,
    ) -> None:
        """fit() switches the node's profiler on, also when the older call asked for it last."""
        with pytorch.init() as context:
            trainer = pytorch.Trainer(Regression(context), context)
            for given in configured:
                trainer.configure_profiler(enabled=given)
            trainer.fit(max_length=Batch(1), profiling_enabled=enabled)
            assert any(t.name == "profiler" for t in threading.enumerate()) is measures
        assert ("use fit(profiling_enabled=True)" in caplog.text) is bool(configured)

    def test_determineds_writer_of_tensorboard_files(self, managed: Managed) -> None:
        """What it has buffered is stored with the trial at the end; without one it does no harm."""
        TorchWriter().close()

        class Writing(Regression):
            def __init__(self, context: Any) -> None:
                super().__init__(context)
                self.logger = TorchWriter()

            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                self.logger.add_scalar("by hand", 1.0, batch_idx)
                self.logger.writer.add_text("text by hand", "x")
                return super().train_batch(batch, epoch_idx, batch_idx)

        with managed.run(), pytorch.init() as context:
            trial = Writing(context)
            pytorch.Trainer(trial, context).fit(max_length=Batch(2))
            assert trial.logger.writer.log_dir == str(context.get_tensorboard_path())
        files = managed.experiment.store.path.rglob("events.out.tfevents*")
        assert any(b"text by hand" in file.read_bytes() for file in files)

    def test_profiling_of_some_batches(self, managed: Managed) -> None:
        """The profiler is on during these alone, whether the code or the configuration names them,
        and after a restart between them, too."""
        seen: dict[int, bool] = {}

        class Watched(Regression):
            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                seen[batch_idx] = any(t.name == "profiler" for t in threading.enumerate())
                return super().train_batch(batch, epoch_idx, batch_idx)

        managed.config["searcher"].pop("max_length", None)
        managed.config["profiling"] = {"enabled": True, "begin_on_batch": 2, "end_after_batch": 3}
        with managed.run(), pytorch.init() as context:
            pytorch.Trainer(Watched(context), context).fit(max_length=Batch(6))
        assert [batch for batch, profiled in seen.items() if profiled] == [2, 3]
        seen.clear()
        with pytorch.init() as context:
            trainer = pytorch.Trainer(Watched(context), context)
            with pytest.raises(ValueError, match="begin_on_batch"):
                trainer.configure_profiler(enabled=True, begin_on_batch=2, end_after_batch=1)
            trainer.configure_profiler(enabled=True, begin_on_batch=1, end_after_batch=1)
            trainer.fit(max_length=Batch(3))
        assert seen == {0: False, 1: True, 2: False}

    def test_gpus_that_torch_does_not_see(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Training on the CPU instead would be slow without a word."""
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        for given in ("", "-1", "0,1"):
            assert "torch sees no GPU" not in caplog.text
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
            with pytorch.init() as context:
                assert context.device.type == "cpu"
        assert "CUDA_VISIBLE_DEVICES is 0,1, but torch sees no GPU" in caplog.text
