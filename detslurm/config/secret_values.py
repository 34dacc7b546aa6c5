"""Mask the secrets in plain data, such as hyperparameters, by their names and by their form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detslurm.config.secret_names import MASK, is_secret
from detslurm.config.secret_texts import masked_text, masked_words


def masked_values(value: Any, name: str = "") -> Any:
    """Return plain data with asterisks for every secret, as deep as the data is.

    Args:
        value: A mapping, a list, a text or a number.
        name: The name that it stands under.
    """
    if isinstance(value, Mapping):
        # A hyperparameter that is the same in every trial stands under `val`.
        const = value.keys() == {"type", "val"} and value["type"] == "const"
        return {
            key: masked_values(item, name if const and key == "val" else str(key))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        words = value and all(isinstance(item, str) and not is_secret(name, item) for item in value)
        return masked_words(value) if words else [masked_values(item, name) for item in value]
    if is_secret(name, value):
        return MASK
    return masked_text(value) if isinstance(value, str) else value


def masked_sample(hparams: Mapping[str, Any], space: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's hyperparameters as records hold them, without constants that are secrets.

    Args:
        hparams: The hyperparameters.
        space: The configuration's `hyperparameters`, as plain data. A value that is drawn is part
            of the result, and stays.
    """
    found = dict(hparams)
    for name, spec in space.items():
        if name in found and _is_nested(spec) and isinstance(found[name], Mapping):
            found[name] = masked_sample(found[name], spec)
        elif name in found and found[name] == (const := _constant(spec)):
            found[name] = masked_values(const, name)
    return found


def restored_sample(hparams: Mapping[str, Any], space: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of which `masked_sample` made these.

    Args:
        hparams: The hyperparameters as recorded.
        space: The same configuration's `hyperparameters`.
    """
    found = dict(hparams)
    for name, spec in space.items():
        if name in found and _is_nested(spec) and isinstance(found[name], Mapping):
            found[name] = restored_sample(found[name], spec)
        elif name in found and found[name] == masked_values(const := _constant(spec), name):
            found[name] = const
    return found


def _is_nested(spec: Any) -> bool:
    return isinstance(spec, Mapping) and not isinstance(spec.get("type"), str)


def _constant(spec: Any) -> Any:
    """The value of a constant; None for what is drawn."""
    if not isinstance(spec, Mapping):
        return spec
    return spec.get("val") if spec.get("type") == "const" else None
