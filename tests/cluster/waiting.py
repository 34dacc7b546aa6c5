"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], timeout: float = 120.0, what: str = "") -> T:
    """The first true value of `condition()`; TimeoutError naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    pause = 0.01
    while not (value := condition()):
        if time.monotonic() > deadline:
            name = what or getattr(condition, "__name__", "a condition")
            raise TimeoutError(f"{name}: not within {timeout:g} s (last seen: {value!r})")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)
    return value
