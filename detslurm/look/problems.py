"""Collects unreadable records: a page with a gap is better than none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Problems(list[str]):
    """Sentences about missing parts."""

    def read(self, what: str, make: Callable[[], T]) -> T | None:
        """Return the result of `make`; where it fails, None, and note which part can't be read."""
        try:
            return make()
        except Exception as error:  # files may hold anything, and so does what reading them raises
            self.append(f"{what} can't be read: {error or type(error).__name__}")
            return None
