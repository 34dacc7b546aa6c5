"""The hyperparameters of optimizers, kept apart from what they have learnt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


class Options:
    """The options that a trial built its optimizers with: learning rates, momenta, decays.

    A copy in population based training goes on from its original's state with its own of these, and
    so does a continuation with other hyperparameters.

    Args:
        optimizers: The optimizers, as they were built.
        schedulers: Their schedules of the learning rate, as they were built.
    """

    def __init__(self, optimizers: Sequence[Any], schedulers: Sequence[Any]) -> None:
        self._optimizers = optimizers
        self._built = [_options(optimizer) for optimizer in optimizers]
        self._rates = [
            (one, name, getattr(one, name))
            for scheduler in schedulers
            for one in _with_inner(scheduler)
            for name in ("base_lrs", "max_lrs")
            if hasattr(one, name)
        ]

    def apply(self) -> None:
        """Give them back; where a schedule stands is kept, as a factor of the learning rate."""
        for optimizer, built in zip(self._optimizers, self._built, strict=True):
            for group, own in zip(optimizer.param_groups, built, strict=True):
                if "initial_lr" in group:  # a schedule may have been made later
                    own = {"initial_lr": own["lr"], **own}
                rate = _rate(group, own)
                group.update(own)
                if rate is not None:
                    group["lr"] = rate
        for scheduler, name, rates in self._rates:
            setattr(scheduler, name, rates)


def _with_inner(scheduler: Any) -> Iterator[Any]:
    """A schedule with those that it consists of (`SequentialLR`, `ChainedScheduler`)."""
    yield scheduler
    for inner in getattr(scheduler, "_schedulers", ()):
        yield from _with_inner(inner)


def _options(optimizer: Any) -> list[dict[str, Any]]:
    return [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


def _rate(group: dict[str, Any], own: dict[str, Any]) -> Any:
    """The learning rate that `own` has come to where `group` has."""
    if "lr" not in own:
        return None
    before = group.get("initial_lr", group["lr"])
    return own.get("initial_lr", own["lr"]) * (group["lr"] / before) if before else own["lr"]
