"""DeepSpeed's configuration, with values of the experiment's in it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def overwrite_deepspeed_config(
    base_ds_config: str | dict[str, Any], source_ds_dict: dict[str, Any]
) -> dict[str, Any]:
    """Return a DeepSpeed configuration with some of its values replaced.

    By convention the values come from the hyperparameter `overwrite_deepspeed_args`, so that a
    search can try several.

    Args:
        base_ds_config: A path to a DeepSpeed configuration in JSON, or the configuration.
        source_ds_dict: The values to replace, nested as they are in the configuration. Values that
            the configuration doesn't have are added.

    Returns:
        A new dictionary; neither argument is changed.

    Raises:
        TypeError: If `base_ds_config` is neither a path nor a dictionary.
        ValueError: If the file is not JSON.

    Example:
        from detslurm.pytorch.deepspeed import overwrite_deepspeed_config

        base = {"train_batch_size": 32, "zero_optimization": {"stage": 1}}
        config = overwrite_deepspeed_config(base, {"zero_optimization": {"stage": 3}})
        assert config == {"train_batch_size": 32, "zero_optimization": {"stage": 3}}
    """
    if isinstance(base_ds_config, Mapping):
        base = copy.deepcopy(dict(base_ds_config))
    elif isinstance(base_ds_config, str | Path):
        base = _read(Path(base_ds_config))
    else:
        raise TypeError(
            "overwrite_deepspeed_config() takes a path or a dictionary as base_ds_config, not"
            f" {base_ds_config!r}"
        )
    return _merged(base, source_ds_dict)


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (json.JSONDecodeError, TypeError) as err:
        raise ValueError(f"{path} is not a DeepSpeed configuration in JSON: {err}") from err


def _merged(base: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in source.items():
        own = base.get(name)
        both = isinstance(own, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(own, value) if both else copy.deepcopy(value)  # type: ignore[arg-type]
    return merged
