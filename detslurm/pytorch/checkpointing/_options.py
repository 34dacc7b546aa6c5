"""The hyperparameters of optimizers, kept apart from what they have learnt."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from detslurm.pytorch._context import PyTorchTrialContext


class Options:
    """The options that a trial built its optimizers with: learning rates, momenta, decays.

    A copy in population based training goes on from its original's state with its own of these.
    """

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._context = context
        self._built = [_options(optimizer) for optimizer in context.optimizers]
        self._bases = [getattr(one._scheduler, "base_lrs", None) for one in context.lr_schedulers]

    def apply(self) -> None:
        """Give them back; where a schedule stands is kept, as a factor of the learning rate."""
        for optimizer, built in zip(self._context.optimizers, self._built, strict=True):
            for group, own in zip(optimizer.param_groups, built, strict=True):
                rate = _rate(group, own)
                group.update(own)
                if rate is not None:
                    group["lr"] = rate
        for one, bases in zip(self._context.lr_schedulers, self._bases, strict=True):
            if bases is not None:
                one._scheduler.base_lrs = bases


def _options(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


def _rate(group: dict[str, Any], own: dict[str, Any]) -> Any:
    """The learning rate that `own` has come to where `group` has."""
    if "lr" not in own:
        return None
    before = group.get("initial_lr", group["lr"])
    return own.get("initial_lr", own["lr"]) * (group["lr"] / before) if before else own["lr"]
