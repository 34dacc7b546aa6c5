"""Calls of this process that a file server answers: delay them, or count them."""

from __future__ import annotations

import builtins
import io
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

CALLS = (
    "fsync", "link", "listdir", "lstat", "mkdir", "open", "remove", "rename", "replace", "rmdir",
    "scandir", "stat", "symlink", "unlink",
)  # fmt: skip


def inject(seconds: float) -> None:
    """Delay each call that takes a path, and fsync, for the rest of this process's life."""
    for name in CALLS:
        setattr(os, name, _delayed(getattr(os, name), seconds))
    builtins.open = io.open = _delayed(builtins.open, seconds)


def _delayed(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def delayed(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return call(*args, **kwargs)

    return delayed


def counted(action: Callable[[], object]) -> Counter[str]:
    """How often an action makes each of the calls in this thread.

    Others may run: a server of another test, or connections that it left behind.
    """
    counts: Counter[str] = Counter()
    caller = threading.get_ident()
    kept = {name: getattr(os, name) for name in CALLS}

    def counting(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += threading.get_ident() == caller
            return kept[name](*args, **kwargs)

        return call

    try:
        for name in CALLS:
            setattr(os, name, counting(name))
        action()
    finally:
        for name in CALLS:
            setattr(os, name, kept[name])
    return counts
