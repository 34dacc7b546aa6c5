"""Collects unreadable records: a page with a gap is better than none."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType


class Problems(list[str]):
    """Sentences about missing parts."""

    def noting(self, what: str) -> _Noting:
        """A block which, where it fails, is left with a sentence about what could not be read."""
        return _Noting(self, what)


@dataclass(frozen=True)
class _Noting:
    problems: Problems
    what: str

    def __enter__(self) -> None:
        """Nothing has failed yet."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        # Files may hold anything, and so does what reading them raises.
        if not isinstance(error, Exception):
            return False
        self.problems.append(f"{self.what} can't be read: {error or type(error).__name__}")
        return True
