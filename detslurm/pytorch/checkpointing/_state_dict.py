"""A checkpoint's state of models, optimizers and the rest: collect it, put it back."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from detslurm.core import DistributedContext
from detslurm.errors import InvalidExperimentException
from detslurm.pytorch._callback import PyTorchCallback
from detslurm.pytorch._context import PyTorchTrialContext
from detslurm.pytorch._ddp import bare, is_sharded
from detslurm.pytorch._rng import set_rng_state
from detslurm.pytorch.checkpointing._sharded import spread

logger = logging.getLogger("detslurm.pytorch")

Callbacks = Mapping[str, PyTorchCallback]


def collect(
    context: PyTorchTrialContext, callbacks: Callbacks, rng_by_rank: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Everything that training depends on, but for gradients between two steps."""
    state: dict[str, Any] = {
        "models_state_dict": [bare(model).state_dict() for model in context.models],
        "optimizers_state_dict": [optimizer.state_dict() for optimizer in context.optimizers],
        "lr_schedulers_state_dict": [one.state_dict() for one in context.lr_schedulers],
        "callbacks": {name: callback.state_dict() for name, callback in callbacks.items()},
        "rng_state": rng_by_rank[0],
    }
    if len(rng_by_rank) > 1:
        state["rng_state_by_rank"] = list(rng_by_rank)
    if context._amp.scaler is not None:
        state["scaler_state_dict"] = context._amp.scaler.state_dict()
    return state


def restore(context: PyTorchTrialContext, callbacks: Callbacks, state: Mapping[str, Any]) -> None:
    """Put everything back, random numbers last. Raises `RuntimeError` for what doesn't fit."""
    restore_models(context, state)
    optimizers = _several(state, "optimizer")
    _same_number("optimizers", optimizers, context.optimizers)
    for optimizer, saved in zip(context.optimizers, optimizers, strict=True):
        optimizer.load_state_dict(saved)
    schedulers = _several(state, "lr_scheduler")
    _same_number("learning rate schedulers", schedulers, context.lr_schedulers)
    for scheduler, saved in zip(context.lr_schedulers, schedulers, strict=True):
        scheduler.load_state_dict(saved)
    # Empty where it was disabled, such as without a GPU.
    if context._amp.scaler is not None and state.get("scaler_state_dict"):
        context._amp.scaler.load_state_dict(state["scaler_state_dict"])
    restore_callbacks(callbacks, state.get("callbacks") or {})
    by_rank = state.get("rng_state_by_rank") or [state.get("rng_state")]
    own = by_rank[context.distributed.rank % len(by_rank)]
    restore_rng(context.distributed, own, saved_by=len(by_rank))


def restore_models(context: PyTorchTrialContext, state: Mapping[str, Any]) -> None:
    """Put the weights back, whatever was wrapped around the models when they were saved."""
    saved = _several(state, "model")
    _same_number("models", saved, context.models)
    for model, weights in zip(context.models, saved, strict=True):
        inner = bare(model)
        inner.load_state_dict(_fitting(weights, inner))


def _several(state: Mapping[str, Any], kind: str) -> list[Any]:
    if f"{kind}s_state_dict" in state:
        return list(state[f"{kind}s_state_dict"])
    # The first versions of Determined had a single object of each.
    single = state.get(f"{kind}_state_dict", state.get(kind))
    return [] if single is None else [single]


def _same_number(what: str, saved: Sequence[Any], wrapped: Sequence[Any]) -> None:
    if len(saved) != len(wrapped):
        raise InvalidExperimentException(
            f"the checkpoint has {len(saved)} {what}, this trial wraps {len(wrapped)}"
        )


def _fitting(weights: Mapping[str, Any], model: nn.Module) -> Mapping[str, Any]:
    wanted = model.state_dict().keys()
    if weights.keys() == wanted:
        return weights
    stripped = {_stripped(name): value for name, value in weights.items()}
    if stripped.keys() == wanted:
        return stripped
    prefixed = {f"module.{name}": value for name, value in stripped.items()}
    return prefixed if prefixed.keys() == wanted else weights


def _stripped(name: str) -> str:
    for prefix in ("module.", "_orig_mod.", "module."):
        name = name.removeprefix(prefix)
    return name


def restore_callbacks(callbacks: Callbacks, states: Mapping[str, Any]) -> None:
    """Give each callback its state, by its name."""
    for name, callback in callbacks.items():
        if name in states:
            callback.load_state_dict(states[name])
        elif type(callback).load_state_dict is not PyTorchCallback.load_state_dict:
            logger.warning(
                "the checkpoint has no state of the callback %r: it starts from scratch", name
            )
    for name in states.keys() - callbacks.keys():
        logger.warning("the checkpoint has a state of a callback %r, which is not there", name)


def restore_rng(dist: DistributedContext, own: Mapping[str, Any] | None, *, saved_by: int) -> None:
    """Put this rank's random numbers back."""
    if saved_by != dist.size:
        logger.warning(
            "the checkpoint was saved by %d ranks and is read by %d: random numbers, and with them"
            " the results, are not those of an uninterrupted training",
            saved_by,
            dist.size,
        )
    if own is None:
        logger.warning("the checkpoint has no state of random numbers")
        return
    set_rng_state(own)


def gradients(context: PyTorchTrialContext, *, sharded: bool = False) -> list[dict[str, Any]]:
    """The gradients of the batches since the last step on this rank, by model and parameter.

    That is of parameters which every rank has whole, or of those which are spread over the ranks.
    """
    return [
        {
            name: p.grad
            for name, p in bare(model).named_parameters()
            if p.grad is not None and is_sharded(p) is sharded
        }
        for model in context.models
    ]


def restore_gradients(
    context: PyTorchTrialContext, by_rank: Sequence[Sequence[Mapping[str, Any]]]
) -> None:
    """Put gathered gradients back: this rank's own, or the average of what several ranks had."""
    for index, model in enumerate(context.models):
        for name, parameter in bare(model).named_parameters():
            parts = [rank[index][name] for rank in by_rank if name in rank[index]]
            if parts:
                mean = sum(parts[1:], parts[0].clone()) / len(by_rank)
                is_spread = is_sharded(parameter) and not is_sharded(mean)
                parameter.grad = spread(mean, parameter) if is_spread else mean.to(parameter.device)
