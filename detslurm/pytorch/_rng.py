"""The random numbers of all libraries: their state as plain data, and back."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed Python, numpy and torch, on all devices."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """The state of every generator, of types that load without running code."""
    name, keys, position, has_gauss, gauss = _numpy_state()
    state = {
        "cpu_rng_state": torch.random.get_rng_state(),
        "np_rng_state": (name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss),
        "random_rng_state": random.getstate(),
    }
    if torch.cuda.is_available():
        state["gpu_rng_state"] = torch.cuda.get_rng_state()
        if torch.cuda.device_count() > 1:  # a trial may compute on others beside its own
            state["gpu_rng_states"] = torch.cuda.get_rng_state_all()
    return state


def _numpy_state() -> tuple[Any, ...]:
    state = np.random.get_state(legacy=True)
    assert isinstance(state, tuple)
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Put every generator into a saved state."""
    torch.random.set_rng_state(state["cpu_rng_state"])
    name, keys, *rest = state["np_rng_state"]
    np.random.set_state((name, np.asarray(keys).astype(np.uint32), *rest))
    random.setstate(state["random_rng_state"])
    if not torch.cuda.is_available():
        return
    others = state.get("gpu_rng_states", ())
    if len(others) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(others)
    if "gpu_rng_state" in state:
        torch.cuda.set_rng_state(state["gpu_rng_state"])  # this rank's own, whatever its number
