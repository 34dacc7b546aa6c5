"""Small trials that say everything that happens to them, written for Determined's PyTorch API."""

import inspect
import json
import math
import pickle
from pathlib import Path

import numpy as np
import torch
from determined import core, pytorch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

StepMode = pytorch.LRScheduler.StepMode
COUNTERS = ("trial_id", "last_ckpt", "step_id", "last_val", "batches_trained", "epochs_trained")
FILES = ("code", "load_data.json", "state_dict.pth", "trial_state.pkl")
events = []


def say(what, *args):
    events.append([what, *[plain(arg) for arg in args]])


def plain(value):
    """What JSON can hold, and tells types apart that users can tell apart."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return ["tuple", *[plain(item) for item in value]]
    if isinstance(value, torch.Tensor):
        return ["tensor", plain(value.detach().tolist())]
    if isinstance(value, np.ndarray):
        return ["array", plain(value.tolist())]
    if isinstance(value, np.generic):
        return ["numpy", plain(value.item())]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else repr(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return type(value).__name__


# The reports, whatever becomes of them.


def spy(kind, name):
    original = vars(kind).get(name)
    if original is None:
        return

    def method(self, *args, **kwargs):
        given = inspect.signature(original).bind(self, *args, **kwargs).arguments
        if name == "report_training_metrics":
            given.pop("batch_metrics", None)
        say(name, {k: v for k, v in given.items() if k != "self"})
        return original(self, *args, **kwargs)

    setattr(kind, name, method)


for kind in {core.TrainContext, getattr(core, "DummyTrainContext", core.TrainContext)}:
    for name in ("report_training_metrics", "report_validation_metrics", "report_early_exit"):
        spy(kind, name)


class Logger(pytorch.PyTorchCallback):
    """Says which hooks are called, and with what."""

    def __init__(self):
        self.batches = 0
        self.checkpoints = []

    def on_trial_startup(self, first_batch_idx, checkpoint_uuid):
        say("on_trial_startup", first_batch_idx, checkpoint_uuid is not None)

    def on_training_start(self):
        say("on_training_start")

    def on_training_epoch_start(self, epoch_idx):
        say("on_training_epoch_start", epoch_idx)

    def on_training_epoch_end(self, epoch_idx):
        say("on_training_epoch_end", epoch_idx)

    def on_training_workload_end(self, avg_metrics, batch_metrics):
        self.batches += len(batch_metrics)
        say("on_training_workload_end", avg_metrics, len(batch_metrics), batch_metrics[:2])

    def on_validation_start(self):
        say("on_validation_start")

    def on_validation_epoch_start(self):
        say("on_validation_epoch_start")

    def on_validation_epoch_end(self, outputs):
        say("on_validation_epoch_end", outputs)

    def on_validation_end(self, metrics):
        say("on_validation_end", metrics)

    def on_checkpoint_load_start(self, checkpoint):
        say("on_checkpoint_load_start", sorted(checkpoint))

    def on_checkpoint_save_start(self, checkpoint):
        say("on_checkpoint_save_start", sorted(checkpoint), sorted(checkpoint["rng_state"]))

    def on_checkpoint_end(self, checkpoint_dir):
        say("on_checkpoint_end")

    def on_checkpoint_write_end(self, checkpoint_dir):
        folder = Path(checkpoint_dir)
        say("on_checkpoint_write_end", sorted(p.name for p in folder.iterdir() if p.name in FILES))
        counters = pickle.loads((folder / "trial_state.pkl").read_bytes())
        say("counters", {name: counters[name] for name in COUNTERS})
        say("load_data", json.loads((folder / "load_data.json").read_text())["trial_cls_spec"])

    def on_checkpoint_upload_end(self, uuid):
        self.checkpoints.append(uuid)
        say("on_checkpoint_upload_end", len(uuid))

    def on_trial_shutdown(self):
        say("on_trial_shutdown")

    def state_dict(self):
        say("state_dict")
        return {"batches": self.batches}

    def load_state_dict(self, state_dict):
        say("load_state_dict", state_dict)
        self.batches = state_dict["batches"]


class Mean(pytorch.MetricReducer):
    def __init__(self, name):
        self.name = name
        self.reset()

    def reset(self):
        say("reset", getattr(self, "name", None))
        self.values = []

    def update(self, value):
        self.values.append(value)

    def per_slot_reduce(self):
        say("per_slot_reduce", self.name, len(self.values))
        return sum(self.values), len(self.values)

    def cross_slot_reduce(self, per_slot_metrics):
        say("cross_slot_reduce", self.name, len(per_slot_metrics))
        total, count = map(sum, zip(*per_slot_metrics, strict=True))
        return total / max(count, 1)


class Several(Mean):
    def cross_slot_reduce(self, per_slot_metrics):
        return {f"{self.name}_mean": super().cross_slot_reduce(per_slot_metrics), "of": 1}


def data(records):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(records, 3, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True) ** 2)


class Trial(pytorch.PyTorchTrial):
    """A regression; 7 batches an epoch."""

    records, size = 28, 4

    def __init__(self, context):
        say("__init__")
        self.context = context
        self.callback = Logger()
        torch.manual_seed(1)
        self.before()
        self.model = context.wrap_model(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9), **self.wrapping()
        )
        self.after()

    def before(self):
        pass

    def wrapping(self):
        return {}

    def after(self):
        pass

    def build_callbacks(self):
        say("build_callbacks")
        return {"logger": self.callback}

    def build_training_data_loader(self):
        say("build_training_data_loader")
        return pytorch.DataLoader(data(self.records), batch_size=self.size)

    def build_validation_data_loader(self):
        say("build_validation_data_loader")
        return pytorch.DataLoader(data(10), batch_size=4)

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, **self.stepping())
        say(
            "train_batch",
            epoch_idx,
            batch_idx,
            loss.item(),
            self.optimizer.param_groups[0]["lr"],
            self.context.is_epoch_start(),
            self.context.is_epoch_end(),
            self.context.current_train_batch(),
            self.model.training,
        )
        return self.returns(loss, batch_idx)

    def stepping(self):
        return {}

    def returns(self, loss, batch_idx):
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        say("evaluate_batch", batch_idx, len(x), loss.item(), self.model.training)
        return {"validation_loss": loss}


def odd(**methods):
    return type("Odd", (Trial,), methods)


class Scheduled(Trial):
    """Every step mode and frequency at once; what each does to its own group's rate."""

    modes = (
        (StepMode.STEP_EVERY_EPOCH, 1),
        (StepMode.STEP_EVERY_EPOCH, 2),
        (StepMode.STEP_EVERY_BATCH, 1),
        (StepMode.STEP_EVERY_BATCH, 3),
        (StepMode.STEP_EVERY_OPTIMIZER_STEP, 1),
        (StepMode.MANUAL_STEP, 1),
    )

    def after(self):
        self.schedulers = []
        for mode, frequency in self.modes:
            optimizer = self.context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 0.0))
            given = self.context.wrap_lr_scheduler(
                lr_scheduler.LambdaLR(optimizer, lambda step: 1.0), mode, frequency
            )
            self.schedulers.append(given)

    def train_batch(self, batch, epoch_idx, batch_idx):
        say("schedulers", [scheduler.last_epoch for scheduler in self.schedulers])
        return super().train_batch(batch, epoch_idx, batch_idx)


class Clipped(Trial):
    def stepping(self):
        def clip(parameters):
            norm = nn.utils.clip_grad_norm_(list(parameters), 0.01)
            say("clip_grads", norm.item())

        return {"clip_grads": clip}


class Summed(Trial):
    """Aggregated gradients are added up, not averaged."""

    def wrapping(self):
        return {"average_aggregated_gradients": False}


class Reduced(Trial):
    def after(self):
        wrap = self.context.wrap_reducer
        self.mean = wrap(Mean("both"), name="mean")
        self.several = wrap(Several("several"))
        self.training = wrap(Mean("training"), name="only_training", for_validation=False)
        self.validation = wrap(Mean("validation"), name="only_validation", for_training=False)
        self.worst = wrap(lambda values: max(values), name="worst")
        self.all = wrap(lambda values: {"a": len(values), "b": sum(values)})

    def update(self, value):
        for reducer in (self.mean, self.several, self.training, self.validation):
            reducer.update(value)
        self.worst.update(value)
        self.all.update(value)

    def returns(self, loss, batch_idx):
        self.update(batch_idx)
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        self.update(batch_idx * 10)
        return super().evaluate_batch(batch, batch_idx)


class Evaluated(Trial):
    """One-argument evaluate_batch(), a reducer for each metric, values of many types."""

    def evaluation_reducer(self):
        kinds = pytorch.Reducer
        return {"avg": kinds.AVG, "sum": kinds.SUM, "max": kinds.MAX, "min": kinds.MIN,
                "integer": kinds.AVG, "array": kinds.SUM}  # fmt: skip

    def evaluate_batch(self, batch):
        mean = batch[0].mean()
        return {"avg": mean, "sum": mean.item(), "max": mean.numpy(), "min": mean.reshape(1),
                "integer": len(batch[0]), "array": batch[0].sum(0)}  # fmt: skip


class WholeDataset(Trial):
    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    def evaluate_full_dataset(self, data_loader):
        say("evaluate_full_dataset", len(data_loader), self.model.training)
        return {"count": len(data_loader), "x": torch.tensor(2.5), "y": np.float32(1.5)}


class Numbers(Trial):
    """Numbers of all types as metrics."""

    def returns(self, loss, batch_idx):
        values = {
            "loss": loss,
            "none": None,
            "sometimes_none": None if batch_idx % 2 else 1.0,
            "integer": batch_idx,
            "boolean": batch_idx % 2 == 0,
            "one": torch.tensor([float(batch_idx)]),
            "numpy": np.float32(batch_idx),
            "nan": float("nan") if batch_idx == 1 else 0.0,
        }
        return values


def returning(**values):
    return odd(returns=lambda self, loss, batch_idx: {"loss": loss, **values})


def evaluating(*values):
    values = list(values)
    return odd(evaluate_batch=lambda self, batch, batch_idx: {"x": values[batch_idx]})


class Bare(Trial):
    def returns(self, loss, batch_idx):
        return loss


class OwnTime(Trial):
    def returns(self, loss, batch_idx):
        return {"loss": loss, "batches": -1, "epochs": "x"}


class Scaled(Trial):
    def before(self):
        self.scaler = self.context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=8.0))

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        self.context.backward(self.scaler.scale(loss))
        self.context.step_optimizer(self.optimizer, scaler=self.scaler)
        self.scaler.update()
        say("train_batch", epoch_idx, batch_idx, loss.item(), self.scaler.get_scale())
        return loss


class Pair(Trial):
    """Two models and optimizers, passes and steps interleaved."""

    def after(self):
        self.other = self.context.wrap_model(nn.Linear(1, 1))
        self.second = self.context.wrap_optimizer(torch.optim.Adam(self.other.parameters(), 0.01))

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        first = nn.functional.mse_loss(self.model(x), y)
        second = nn.functional.mse_loss(self.other(self.model(x).detach()), y)
        self.context.backward(second)
        self.context.backward(first, retain_graph=True)
        self.context.step_optimizer(self.second)
        self.context.step_optimizer(self.optimizer)
        say("train_batch", batch_idx, first.item(), second.item())
        return {"first": first, "second": second}


class NoBatchOfItsOwn(Trial):
    """An old signature of a hook."""

    def build_callbacks(self):
        class Old(pytorch.PyTorchCallback):
            def on_training_epoch_start(self):
                say("old on_training_epoch_start")

        return {"logger": self.callback, "old": Old()}


class Plain(Trial):
    """torch's own loader, its order and place the trial's own care."""

    def before(self):
        self.context.experimental.disable_dataset_reproducibility_checks()

    def build_training_data_loader(self):
        return torch.utils.data.DataLoader(data(self.records), batch_size=self.size)

    build_validation_data_loader = build_training_data_loader


class Unchecked(Plain):
    def before(self):
        pass


def raising(where, error):
    """A trial that raises `error` when it gets there."""

    class Raising(Trial):
        pass

    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx == 3:
            raise error
        return Trial.train_batch(self, batch, epoch_idx, batch_idx)

    def fail(self, *args, **kwargs):
        say(where)
        raise error

    if where == "train_batch":
        Raising.train_batch = train_batch
    elif where.startswith("on_"):

        class Failing(Logger):
            pass

        setattr(Failing, where, fail)

        def after(self):
            self.callback = Failing()

        Raising.after = after
    else:
        setattr(Raising, where, fail)
    return Raising


class Uneven(Trial):
    """The last batch of every epoch is smaller."""

    records = 10
