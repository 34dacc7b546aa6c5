"""The values of `notebook_idle_type`, which chooses the signs that a notebook is in use."""

from __future__ import annotations

from typing import Final, Literal, get_args

IdleType = Literal["kernel_connections", "activity", "kernels_or_terminals"]
IDLE_TYPES: Final[tuple[IdleType, ...]] = get_args(IdleType)
"""The first is the default. `exec/tasks/notebook_use.py` has their meaning."""
