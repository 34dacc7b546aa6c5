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
        outer = "" if isinstance(value.get("type"), str) else name
        return {
            key: masked_values(item, name if const and key == "val" else _below(outer, str(key)))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        words = value and all(isinstance(item, str) and not is_secret(name, item) for item in value)
        return masked_words(value) if words else [masked_values(item, name) for item in value]
    if is_secret(name, value):
        return MASK
    return masked_text(value) if isinstance(value, str) else value


def masked_sample(
    hparams: Mapping[str, Any], space: Mapping[str, Any], outer: str = ""
) -> dict[str, Any]:
    """Return a trial's hyperparameters as records hold them, without constants that are secrets.

    Args:
        hparams: The hyperparameters.
        space: The configuration's `hyperparameters`, as plain data. A value that is drawn is part
            of the result, and stays.
        outer: The name that the hyperparameters stand under.
    """
    found = dict(hparams)
    for name, spec in space.items():
        below = _below(outer, name)
        if name in found and _is_nested(spec) and isinstance(found[name], Mapping):
            found[name] = masked_sample(found[name], spec, below)
        elif name in found and found[name] == (const := _constant(spec)):
            found[name] = masked_values(const, below)
    return found


def shareable_sample(hparams: Mapping[str, Any], space: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's hyperparameters for files that are copied: those that are drawn stay.

    Args:
        hparams: The hyperparameters, which may have others than the configuration's.
        space: The configuration's `hyperparameters`, as plain data.
    """
    sampled = {name: value for name, value in hparams.items() if name in space}
    return {**masked_values(hparams), **masked_sample(sampled, space)}


def restored_sample(
    hparams: Mapping[str, Any], space: Mapping[str, Any], outer: str = ""
) -> dict[str, Any]:
    """Return the hyperparameters of which `masked_sample` made these.

    Args:
        hparams: The hyperparameters as recorded.
        space: The same configuration's `hyperparameters`.
        outer: The name that the hyperparameters stand under.
    """
    found = dict(hparams)
    for name, spec in space.items():
        below = _below(outer, name)
        if name in found and _is_nested(spec) and isinstance(found[name], Mapping):
            found[name] = restored_sample(found[name], spec, below)
        elif name in found and found[name] == masked_values(const := _constant(spec), below):
            found[name] = const
    return found


def _below(outer: str, name: str) -> str:
    """The name that counts inside of a mapping: all of `credentials` is secret, whatever it is."""
    return outer if is_secret(outer, 0) and not is_secret(name) else name


def _is_nested(spec: Any) -> bool:
    return isinstance(spec, Mapping) and not isinstance(spec.get("type"), str)


def _constant(spec: Any) -> Any:
    """The value of a constant; None for a drawn value."""
    if not isinstance(spec, Mapping):
        return spec
    return spec.get("val") if spec.get("type") == "const" else None
