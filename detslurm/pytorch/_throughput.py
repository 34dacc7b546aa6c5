"""How fast training goes, for the log."""

from __future__ import annotations

import logging
import time
from typing import Any

from detslurm.pytorch._trial import PyTorchTrial

logger = logging.getLogger("detslurm.pytorch")


class Throughput:
    """Counts batches and records since `begin()`."""

    def __init__(self, trial: PyTorchTrial) -> None:
        self._length: Any = trial.get_batch_length
        self.begin()

    def begin(self) -> None:
        """Start to count."""
        self._batches = self._records = 0
        self._began = time.monotonic()

    def add(self, batch: Any) -> None:
        """Count a batch; one that has no length is a batch all the same."""
        self._batches += 1
        if self._length is None:
            return
        try:
            self._records += self._length(batch)
        except (TypeError, ValueError) as err:
            logger.warning("records are not counted: %s", err)
            self._length = None

    def __str__(self) -> str:
        spent = max(time.monotonic() - self._began, 1e-9)
        text = f"{self._batches / spent:.1f} batches/s"
        return text if self._length is None else f"{text}, {self._records / spent:.0f} records/s"
