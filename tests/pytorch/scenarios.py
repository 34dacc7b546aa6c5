"""What `tests.pytorch.ranks` runs on several ranks."""

from __future__ import annotations

import logging
import os
import pickle
from typing import Any

import torch

from detslurm import pytorch
from detslurm.pytorch._plan import TrainingPlan
from tests.pytorch.rank_trials import (
    Adversaries,
    AsksToStop,
    AtOnce,
    Branches,
    CallsTheBareModel,
    Careless,
    CarelessAndSaid,
    Compressed,
    Drifts,
    DriftsByHand,
    FailsToEvaluate,
    Idle,
    Normalized,
    Reached,
    Refuses,
    Scaled,
    Twice,
    Uneven,
    Unused,
    UnusedAndSaid,
)
from tests.pytorch.ranks import Plain, Seen, train


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
