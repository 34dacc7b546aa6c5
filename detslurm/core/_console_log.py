"""The log lines about reported metrics, unless the program configures logging."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from detslurm._base.quantities import brief

logger = logging.getLogger("detslurm.core")

UNMANAGED: Final = 1.0
"""The seconds between two lines of one group of metrics, at least, for a person who looks on."""

IN_JOB: Final = 60.0
"""The same in a job, whose log is kept. Scripts may report each step."""


def show_log() -> None:
    """Show detslurm's log, from INFO on, in a program that leaves logging unconfigured."""
    ours = logging.getLogger("detslurm")
    if logging.getLogger().handlers or ours.handlers or ours.level != logging.NOTSET:
        return
    ours.setLevel(logging.INFO)
    ours.addHandler(_Fallback())


class _Fallback(logging.Handler):
    """Writes to stderr as long as the program has no handler of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        if not logging.getLogger().handlers:
            level = f"{record.levelname.lower()}: " if record.levelno > logging.INFO else ""
            print(f"detslurm: {level}{self.format(record)}", file=sys.stderr, flush=True)


class MetricLines:
    """Logs reported metrics: of each group the first report, then one every `seconds` at most, and
    the last."""

    def __init__(self, seconds: float = UNMANAGED) -> None:
        self._seconds = seconds
        self._shown: dict[str, float] = {}
        self._waiting: dict[str, str] = {}

    def show(self, group: str, steps: int, metrics: Mapping[str, Any]) -> None:
        """Log a report, unless the group's last line is too young."""
        numbers = {k: v for k, v in metrics.items() if isinstance(v, float | int)}
        if not numbers:
            return
        now = time.monotonic()
        words = ", ".join(f"{name} {brief(value)}" for name, value in numbers.items())
        if self._seconds == IN_JOB and not self._shown:
            words += " (each group of metrics gets at most a line a minute)"
        self._waiting[group] = f"{_where(group, steps)}: {words}"
        if now - self._shown.get(group, -self._seconds) >= self._seconds:
            self._shown[group] = now
            logger.info(self._waiting.pop(group))

    def close(self) -> None:
        """Log the last report of each group that has not been shown."""
        while self._waiting:
            logger.info(self._waiting.pop(next(iter(self._waiting))))


def _where(group: str, steps: int) -> str:
    if group == "training":
        return f"step {steps}"
    return f"validation after step {steps}" if group == "validation" else f"{group}, step {steps}"
