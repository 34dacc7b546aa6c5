"""What `tests.pytorch.ranks` runs on several ranks."""

from __future__ import annotations

import logging
import os
import pickle
from typing import Any

import torch
from torch import nn

from detslurm import InvalidHP, pytorch
from detslurm.pytorch._ddp import bare
from detslurm.pytorch._plan import TrainingPlan
from tests.pytorch.ranks import Plain, Seen, train
from tests.pytorch.trials import numbers


class Twice(Plain):
    """Two backward passes over the same parameters in each batch."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.optimizers.clear()
        self.optimizer = context.wrap_optimizer(self.optimizer, backward_passes_per_step=2)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.context.backward(loss / 2, retain_graph=True)
        self.context.backward(loss / 2)
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda p: nn.utils.clip_grad_norm_(p, 1.0)
        )
        return loss


class Adversaries(Plain):
    """A generator and a discriminator, each with its optimizer; and a frozen model."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context, self.batch_size, self.synced = context, 4, []
        torch.manual_seed(1)
        self.model = context.wrap_model(nn.Linear(8, 8).double())
        self.critic = context.wrap_model(nn.Linear(8, 1).double())
        frozen = nn.Linear(8, 8).double().requires_grad_(False)
        frozen.weight += context.distributed.rank  # until it is wrapped
        self.frozen = context.wrap_model(frozen)
        self.opt_g = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.opt_d = context.wrap_optimizer(torch.optim.SGD(self.critic.parameters(), lr=0.1))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        x = self.frozen(batch[0].double())
        self.critic.requires_grad_(False)
        made = self.model(x)
        loss_g = self.critic(made).square().mean()
        self.context.backward(loss_g)
        self.critic.requires_grad_(True)
        loss_d = (self.critic(made.detach()) - self.critic(x)).square().mean()
        self.context.backward(loss_d)
        self.context.step_optimizer(self.opt_g)
        self.context.step_optimizer(self.opt_d)
        return {"g": loss_g, "d": loss_d}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"loss": 0.0}


class Careless(Adversaries):
    """The generator's backward pass goes through the discriminator, whose gradients it spoils."""

    passes = 1

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.wrap_optimizer(self.opt_d, backward_passes_per_step=self.passes)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        made = self.model(batch[0].double())
        self.context.backward(self.critic(made).square().mean())
        self.critic.zero_grad()
        loss = (self.critic(made.detach()) - self.critic(batch[0].double())).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.opt_g)
        self.context.step_optimizer(self.opt_d)
        return {"d": loss}


class CarelessAndSaid(Careless):
    passes = 2


class Compressed(Plain):
    """Sends gradients in half precision."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.wrap_optimizer(self.optimizer, fp16_compression=True)


class Scaled(Plain):
    """A scaler in the trial's own hands; rank 1 alone has an infinite loss in batch 4."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=4.0))
        super().__init__(context)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = self.loss(batch)
        too_much = batch_idx == 3 and self.context.distributed.rank == 1
        self.context.backward(self.scaler.scale(loss * (torch.inf if too_much else 1)))
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.context.step_optimizer(self.optimizer, scaler=self.scaler)
        self.scaler.update()
        return {"loss": loss, "scale": self.scaler.get_scale()}


class Branches(Plain):
    """Each rank uses other parameters, and some are used by nobody."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context, self.batch_size, self.synced = context, 4, []
        torch.manual_seed(1)
        self.model = context.wrap_model(nn.ModuleList(nn.Linear(8, 1).double() for _ in range(3)))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.squares = context.wrap_reducer(self.mean_square, "mean_square")

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = (part.double() for part in batch)
        error = self.model[self.context.distributed.rank % 2](x) - y
        self.squares.update((float(error.detach().square().sum()), len(x)))  # type: ignore[attr-defined]
        return error.square().mean()


class Normalized(Plain):
    """Batch norm has buffers, and the only validation batch is rank 0's."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context, self.batch_size, self.synced = context, 4, []
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).double()
        self.model = context.wrap_model(net)
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.squares = context.wrap_reducer(self.mean_square, "mean_square")

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(4), batch_size=4)


class AtOnce(Normalized):
    """The chief alone evaluates, and has data for it."""

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        assert self.context.distributed.rank == 0
        return super().build_validation_data_loader()

    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        (batch,) = data_loader
        return {"loss": self.loss(batch)}


class Drifts(Normalized):
    """Each rank tells what its own batch norms have when it validates; one is not trained."""

    passes = 1

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.optimizers.clear()
        context.wrap_optimizer(self.optimizer, backward_passes_per_step=self.passes)
        self.frozen = context.wrap_model(nn.BatchNorm1d(8, affine=False).double())

    def loss(self, batch: Any) -> torch.Tensor:
        self.frozen(batch[0].double())
        return super().loss(batch)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(8), batch_size=4)

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.loss(batch)
        mean = bare(self.model)[1].running_mean.sum() + self.frozen.running_mean.sum()
        return {"most": mean, "least": mean}

    def evaluation_reducer(self) -> dict[str, pytorch.Reducer]:
        return {"most": pytorch.Reducer.MAX, "least": pytorch.Reducer.MIN}


class DriftsByHand(Drifts):
    passes = 2


class Uneven(Plain):
    """5 batches: an epoch has 3 for the chief, 2 for the other. Compiled, too."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.model.compile(backend="aot_eager")
        self.ends: list[int] = []

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(20), batch_size=self.batch_size)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        if self.context.is_epoch_end():
            self.ends.append(batch_idx)
        return super().train_batch(batch, epoch_idx, batch_idx)


class AsksToStop(Plain):
    """Rank 1 alone asks to stop in batch 4."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        if batch_idx == 3 and self.context.distributed.rank == 1:
            self.context.set_stop_requested(True)
        return super().train_batch(batch, epoch_idx, batch_idx)


class CallsTheBareModel(Plain):
    """Forgets what `wrap_model()` has returned."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.model = bare(self.model)


class Unused(Plain):
    """Some parameters take no part in training."""

    passes = 1

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context, self.batch_size, self.synced = context, 4, []
        net = nn.Linear(8, 1).double()
        net.unused = nn.Linear(1, 1)
        self.model = context.wrap_model(net)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.optimizer = context.wrap_optimizer(optimizer, backward_passes_per_step=self.passes)
        self.squares = context.wrap_reducer(self.mean_square, "mean_square")


class UnusedAndSaid(Unused):
    passes = 2


class Idle(Plain):
    """A parameter that no slot uses, and one that the second slot alone does, under AdamW."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context, self.batch_size, self.synced = context, 4, []
        self.net = nn.Linear(8, 1).double()
        self.net.idle = nn.Linear(1, 1).double()
        self.net.seldom = nn.Parameter(torch.ones(1).double())
        self.model = context.wrap_model(self.net)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1, weight_decay=0.5)
        self.optimizer = context.wrap_optimizer(optimizer, backward_passes_per_step=2)
        self.squares = context.wrap_reducer(self.mean_square, "mean_square")

    def loss(self, batch: Any) -> torch.Tensor:
        loss = super().loss(batch)
        return loss * self.net.seldom if self.context.distributed.rank else loss


class Reached(nn.Module):  # type: ignore[misc]
    """A model with more than a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1)
        self.scale, self.module_name, self._secret = 1.0, "reached", "old"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encode(x)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) * self.scale

    @property
    def broken(self) -> int:
        raise AttributeError("of the property")


class FailsToEvaluate(Plain):
    """Rank 1 returns other metrics than rank 0 does."""

    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        return [] if self.context.distributed.rank == 1 else {"loss": 1.0}


class Refuses(Plain):
    """Rank 1 alone finds that the hyperparameters are no good."""

    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        if self.context.distributed.rank == 1:
            raise InvalidHP("too wide")
        return super().evaluate_batch(batch, batch_idx)


def plain() -> dict[str, Any]:
    """Two ranks, no aggregation."""
    return train(1, 8)


def uneven() -> dict[str, Any]:
    """Ranks whose epochs have different lengths; three batches a step."""
    trials: list[Uneven] = []

    def make(context: pytorch.PyTorchTrialContext) -> Uneven:
        trials.append(Uneven(context))
        return trials[0]

    return train(3, 9, make, validation_period=pytorch.Epoch(2)) | {"ends": trials[0].ends}


def aggregated_adversaries() -> dict[str, Any]:
    """Several models and optimizers, two batches a step."""
    return train(2, 8, Adversaries)


def chief_only() -> dict[str, Any]:
    """Training metrics of the chief alone."""
    seen = Seen()
    with pytorch.init() as context:
        trial = Plain(context)
        trial.build_callbacks = lambda: {"seen": seen}  # type: ignore[method-assign]
        plan = TrainingPlan(
            max_length=pytorch.Batch(1), policy="none", average_training_metrics=False
        )
        pytorch.Trainer(trial, context)._run(plan)
        whole = context.distributed.allgather(trial.own)
    return {"training": seen.training, "own": whole}


def aggregated() -> dict[str, Any]:
    """Two ranks, two batches a step."""
    return train(2, 8)


def twice() -> dict[str, Any]:
    """Two backward passes a batch."""
    return train(1, 8, Twice)


def adversaries() -> dict[str, Any]:
    """Several models and optimizers."""
    return train(1, 8, Adversaries)


def compressed() -> dict[str, Any]:
    """Half precision on the way."""
    return train(1, 8, Compressed)


def scaled() -> dict[str, Any]:
    """A step that no rank makes."""
    return train(1, 8, Scaled)


def branches() -> dict[str, Any]:
    """Parameters that not every rank has gradients of."""
    return train(1, 8, Branches)


def halfway() -> dict[str, Any]:
    """Save between two steps, and go on from there."""
    saved = train(2, 5)["checkpoints"][-1]
    return train(2, 8, latest_checkpoint=saved) | {"saved": saved}


def full_disk() -> dict[str, Any]:
    """No space for two checkpoints: one that both ranks write, and one of the chief's."""
    return train(2, 8, full_disks=2, checkpoint_period=pytorch.Batch(3))


def normalized() -> dict[str, Any]:
    """Validations in which not every rank takes part."""
    return train(2, 6, Normalized, validation_period=pytorch.Batch(3))


def drifts() -> list[dict[str, Any]]:
    """Validations after batches in which no gradients were exchanged."""
    kinds = ((2, Drifts), (1, DriftsByHand))
    found = [train(n, 6, kind, validation_period=pytorch.Batch(3)) for n, kind in kinds]
    return [metrics for one in found for metrics in one["validation"]]


def at_once() -> dict[str, Any]:
    """Validations by the chief."""
    return train(2, 6, AtOnce, validation_period=pytorch.Batch(3))


def asks_to_stop() -> dict[str, Any]:
    """One rank's wish."""
    return train(2, 20, AsksToStop)


def fails_to_evaluate() -> str:
    """One rank's mistake, as each rank sees it."""
    try:
        train(1, 2, FailsToEvaluate)
    except TypeError as err:
        return str(err)
    return "no error"


def refuses() -> str:
    """How each rank leaves when one refuses its hyperparameters."""
    try:
        train(1, 2, Refuses)
    except SystemExit as err:
        return f"left with {err.code}"
    return "went on"


def unused() -> list[str]:
    """What is added to torch's error; what it advises works."""
    train(1, 4, UnusedAndSaid)
    try:
        train(1, 4, Unused)
    except RuntimeError as err:
        return err.__notes__
    return []


def idle() -> dict[str, Any]:
    """What becomes of parameters that a backward pass does not reach."""
    trials: list[Idle] = []

    def make(context: pytorch.PyTorchTrialContext) -> Idle:
        trials.append(Idle(context))
        trials[0].before = trials[0].net.idle.weight.item()  # type: ignore[attr-defined]
        return trials[0]

    train(1, 4, make)
    net = trials[0].net
    return {
        "idle": [trials[0].before, net.idle.weight.item()],  # type: ignore[attr-defined]
        "seldom": net.seldom.item(),
    }


def reaches() -> dict[str, Any]:
    """The attributes of a wrapped model."""
    with pytorch.init() as context:
        net = Reached()
        model: Any = context.wrap_model(net)
        keys = list(model.state_dict())
        model.scale, model.fresh, model._secret, model._own = 2.0, [1], "new", 1
        x = torch.ones(1, 2)
        found = {
            "same": model.head is net.head and model.encode.__self__ is net,
            "forward": torch.equal(model(x), model.encode(x)) and net.scale == 2.0,
            "set": [net.fresh, net._secret, hasattr(net, "_own"), model._own],
            "state": list(model.state_dict()) == keys,
            "missing": [hasattr(model, name) for name in ("nothing", "broken", "__nothing__")],
            "ddp": model.module is net and model.require_backward_grad_sync,
        }
        del model.fresh
        again: Any = pickle.loads(pickle.dumps(model))
        again.scale = 3.0
        found["pickled"] = [again.module.scale, type(again) is type(model), net.scale]
        return found | {"deleted": not hasattr(net, "fresh")}


def calls_the_bare_model() -> list[str]:
    """What is said of it on this rank."""
    said: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("detslurm.pytorch").addHandler(listener)
    train(1, 2, CallsTheBareModel)
    return said


COMMON = (
    "plain", "aggregated", "twice", "adversaries", "compressed", "scaled", "halfway",
    "asks_to_stop", "normalized", "at_once", "uneven", "aggregated_adversaries", "chief_only",
    "full_disk", "fails_to_evaluate", "calls_the_bare_model", "unused", "drifts", "refuses",
    "idle",
)  # fmt: skip


def everything() -> dict[str, Any]:
    """All scenarios in one start of torchrun, which takes seconds."""
    return {name: globals()[name]() for name in (*COMMON, "reaches")}


def on_horovod() -> dict[str, Any]:
    """Those that don't need DDP, and two that DDP refuses."""
    return {name: globals()[name]() for name in (*COMMON, "branches", "careless")}


def careless() -> list[Any]:
    """The same, whether the trial says that gradients change after a backward pass or not."""
    return [train(1, 8, kind)["training"] for kind in (Careless, CarelessAndSaid)]


def resumed() -> dict[str, Any]:
    """An interrupted training and a whole one."""
    return {"halfway": halfway(), "aggregated": aggregated()}


def goes_on() -> dict[str, Any]:
    """From between two steps of another training."""
    return train(2, 8, latest_checkpoint=os.environ["SAVED"])
