"""NVIDIA's apex.amp, which is retired, by means of torch's own mixed precision."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from detslurm.errors import InvalidExperimentException
from detslurm.pytorch._amp import LossScale, MixedPrecision

logger = logging.getLogger("detslurm.pytorch")

_LEVELS = ("O0", "O1", "O2", "O3")


def configure(
    amp: MixedPrecision,
    models: Any,
    opt_level: str | None,
    scale: LossScale,
    *,
    several_slots: bool,
    **others: Any,
) -> None:
    """Set up what a level of apex stands for.

    O0 is float32. O1 and O2 are autocast with a loss scale, where weights and batch norm stay in
    float32. O3 is half precision throughout. `others` has the arguments that have no counterpart:
    those that were given are named.
    """
    level = opt_level or "O1"
    if level not in _LEVELS:
        raise InvalidExperimentException(
            f"configure_apex_amp(): opt_level must be one of {', '.join(_LEVELS)}, not {level!r}"
        )
    if given := [name for name, value in others.items() if value is not None]:
        logger.warning(
            "configure_apex_amp() trains by torch.amp, which has no counterpart of %s: ignored",
            ", ".join(given),
        )
    if level in ("O1", "O2"):
        amp.use(scale)
    elif level == "O3":
        if several_slots:
            raise InvalidExperimentException(
                "configure_apex_amp(opt_level='O3') turns a model to half precision, which is not"
                " possible once it averages gradients over several slots: use O1 or O2"
            )
        for model in models if isinstance(models, list | tuple) else [models]:
            _halve(model)


def scale_of(loss_scale: Any, least: float | None, most: float | None) -> LossScale:
    """The loss scale by apex's arguments. Raises `InvalidExperimentException`."""
    if loss_scale is None or loss_scale == "dynamic":
        return LossScale(least=least, most=most)
    try:
        return LossScale(fixed=float(loss_scale))
    except (TypeError, ValueError):
        raise InvalidExperimentException(
            f"configure_apex_amp(): loss_scale must be a number or 'dynamic', not {loss_scale!r}"
        ) from None


def _halve(model: nn.Module) -> None:
    model.half()
    model.register_forward_pre_hook(_half_inputs, with_kwargs=True)


def _half_inputs(model: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return _half(args), _half(kwargs)


def _half(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.half() if value.is_floating_point() else value
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(map(_half, value))
    if isinstance(value, dict):
        return {key: _half(item) for key, item in value.items()}
    return value
