"""Make this process feel a shared file system: a delay before every call that a server answers."""

from __future__ import annotations

import builtins
import io
import os
import time
from collections.abc import Callable
from typing import Any

_CALLS = (
    "fsync", "link", "listdir", "lstat", "mkdir", "open", "remove", "rename", "replace", "rmdir",
    "scandir", "stat", "symlink", "unlink",
)  # fmt: skip


def inject(seconds: float) -> None:
    """Delay each call that takes a path, and fsync, for the rest of this process's life."""
    for name in _CALLS:
        setattr(os, name, _delayed(getattr(os, name), seconds))
    builtins.open = io.open = _delayed(builtins.open, seconds)


def _delayed(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def delayed(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return call(*args, **kwargs)

    return delayed
