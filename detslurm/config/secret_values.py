"""Mask the secrets in plain data, such as hyperparameters, by their names and by their form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from detslurm.config.secret_names import MASK, is_secret
from detslurm.config.secret_texts import masked_text, masked_words
from detslurm.config.spaces import constant, is_choice, is_constant, is_group, place_among


def masked_values(value: Any, name: str = "") -> Any:
    """Plain data, which stands under `name`, with asterisks for every secret, at any depth."""
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


def masked_sample(hparams: Mapping[str, Any], space: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's hyperparameters as records hold them, without constants that are secrets.

    `space` is the configuration's `hyperparameters` as plain data. A value that is drawn is part
    of the result, and stays.
    """
    return _with_constants(hparams, space, _masked)


def shareable_sample(hparams: Mapping[str, Any], space: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's hyperparameters for files that are copied: those that are drawn stay. There may be
    others than the configuration's."""
    sampled = {name: value for name, value in hparams.items() if name in space}
    return {**masked_values(hparams), **masked_sample(sampled, space)}


def restored_sample(hparams: Mapping[str, Any], space: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters of which `masked_sample` made these."""
    return _with_constants(hparams, space, _restored)


Change = Callable[[Any, Any, str], Any]


def _masked(value: Any, const: Any, name: str) -> Any:
    return masked_values(const, name) if value == const else value


def _restored(value: Any, const: Any, name: str) -> Any:
    return const if value == masked_values(const, name) else value


def _with_constants(
    hparams: Mapping[str, Any], space: Mapping[str, Any], change: Change, outer: str = ""
) -> dict[str, Any]:
    """The hyperparameters, of which `change` gives the constants from value, constant and name."""
    found = dict(hparams)
    for name, spec in space.items():
        if name in found:
            found[name] = _changed(found[name], spec, change, _below(outer, name))
    return found


def _changed(value: Any, spec: Any, change: Change, name: str) -> Any:
    if is_constant(spec):
        return change(value, constant(spec), name)
    if is_group(spec):
        is_mapping = isinstance(value, Mapping)
        return _with_constants(value, spec, change, name) if is_mapping else value
    if is_choice(spec):
        place = place_among(spec["vals"], value)
        val = None if place is None else spec["vals"][place]
        return value if is_constant(val) else _changed(value, val, change, name)  # drawn: stays
    return value


def _below(outer: str, name: str) -> str:
    """The name that counts inside of a mapping: all of `credentials` is secret, whatever it is."""
    return outer if is_secret(outer, 0) and not is_secret(name) else name
