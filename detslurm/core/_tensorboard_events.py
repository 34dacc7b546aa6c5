"""Reported metrics as a TensorBoard event file; the caller calls `write` periodically."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from detslurm._base.tensorboard_tags import tensorboard_tag
from detslurm.store import as_float

logger = logging.getLogger("detslurm.core")

# Code that reports faster than TensorBoard's writer writes must not eat up the memory.
_WAITING = 20_000


class EventFile:
    """One event file, begun with the first metrics. `add` is for one thread, `write` another."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._waiting: deque[tuple[str, int, Mapping[str, Any], float]] = deque(maxlen=_WAITING)
        self._writer: Any = None
        self._broken = False

    def add(self, group: str, steps: int, values: Mapping[str, Any], time: float) -> None:
        """Take metrics to be written; the oldest are dropped when far too many wait."""
        if not self._broken:
            self._waiting.append((group, steps, values, time))

    def write(self) -> None:
        """Write what waits."""
        if self._broken or not self._waiting:
            return
        try:
            self._write()
        except Exception as error:
            self._give_up(f"can't be written: {error}")

    def _write(self) -> None:
        if self._writer is None and not self._open():
            return
        while self._waiting:
            group, steps, values, time = self._waiting.popleft()
            if points := [(tensorboard_tag(group, name), v) for name, v in scalars(values)]:
                self._writer.add(time, steps, points)
        self._writer.flush()

    def _open(self) -> bool:
        if find_spec("tensorboard") is None:
            self._give_up("are not written: `pip install 'detslurm[tensorboard]'`", logging.INFO)
            return False
        from detslurm.core._event_records import EventRecords  # only where metrics are reported

        self._writer = EventRecords(self._folder())
        return True

    def _give_up(self, why: str, level: int = logging.WARNING) -> None:
        logger.log(level, "TensorBoard files %s", why)
        self._broken = True
        self._waiting.clear()

    def close(self) -> None:
        """Write what waits and end the file."""
        self.write()
        if self._writer is not None:
            self._writer.close()


def scalars(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers among metrics, nested ones by names with slashes between."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", as_float(value)
