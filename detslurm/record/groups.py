"""The groups of recorded values: training, or validation by their names."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache


class Groups:
    """Decides by a value's name whether it belongs to validation. Pure.

    The searcher's metrics do. Other names do if a pattern matches the whole name, or a part of it
    between slashes: `val_loss`, `val/loss` and `loss/val` all match `val*`.
    """

    def __init__(self, compared: Sequence[str], patterns: Sequence[str]) -> None:
        self._compared = compared
        self._patterns = [pattern.lower() for pattern in patterns]
        self.of = cache(self._of)

    def _of(self, name: str) -> str:
        return "validation" if name in self._compared or self._matches(name.lower()) else "training"

    def _matches(self, name: str) -> bool:
        parts = (name, *name.split("/"))
        return any(fnmatchcase(part, pattern) for part in parts for pattern in self._patterns)
