"""Answers that are on their way while other work is done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """The answer to a question that is asked at once, in a thread of its own."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answers: list[T] = []
        self._error: BaseException | None = None
        # No daemon: a process that ends with one in the middle of something may crash.
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answers.append(self._ask())
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        """The answer, once it is there; raises what asking raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answers[0]
