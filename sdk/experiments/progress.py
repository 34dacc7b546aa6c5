"""How a long reading of a store is shown."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Progress = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""Gets the read parts; its block learns how much is done, and how much there is."""


def silent(what: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """Shows no progress."""
    return nullcontext(lambda done, whole: None)
