"""The log lines of training."""

from __future__ import annotations

import logging
import math
import numbers
import time
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import numpy as np

from detslurm._base.quantities import brief
from detslurm.pytorch._averages import on_host
from detslurm.pytorch._base_trial import BaseTrial

logger = logging.getLogger("detslurm.pytorch")


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """The metrics that are numbers, on one line."""
    return ", ".join(f"{name} {brief(value)}" for name, value in _numbers(metrics).items())


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in on_host(metrics).items() if isinstance(v, numbers.Real | np.number)}


class TrainingLog:
    """Counts batches and records since `begin()`, and logs them at every report.

    The other replicas have about as many records as this replica.
    """

    def __init__(self, trial: BaseTrial, replicas: int) -> None:
        self._length: Any = trial.get_batch_length
        self._replicas = replicas
        self._known_nan: set[str] = set()
        self.begin()

    def begin(self) -> None:
        """Start to count."""
        self.batches = self._records = 0
        self._began = time.monotonic()

    def counted(self, batches: Iterator[Any]) -> Generator[Any]:
        """The batches of a data loader, whose records are counted."""
        for batch in batches:
            self._count(batch)
            yield batch

    def _count(self, batch: Any) -> None:
        if self._length is None:
            return
        try:
            self._records += self._length(batch)
        except (TypeError, ValueError) as err:
            logger.warning("records are not counted: %s", err)
            self._length = None

    def log(self, where: str, metrics: Mapping[str, Any]) -> None:
        """Log a line; the first NaN of a metric is worth a warning."""
        logger.info(
            "%s: %s", where, ", ".join(filter(None, (format_metrics(metrics), self._speed())))
        )
        nan = {name for name, value in _numbers(metrics).items() if math.isnan(value)}
        new, self._known_nan = nan - self._known_nan, self._known_nan | nan
        if new:
            logger.warning(
                "%s NaN, averaged over the last %d batches; training goes on. A lower learning"
                " rate or clipped gradients may help;"
                " torch.autograd.set_detect_anomaly(True) finds the operation that it comes from",
                " and ".join(sorted(new)) + (" is" if len(new) == 1 else " are"),
                self.batches,
            )

    def _speed(self) -> str:
        spent = max(time.monotonic() - self._began, 1e-9)
        text = f"{self.batches / spent:.1f} batches/s"
        records = self._records * self._replicas / spent
        return text if self._length is None else f"{text}, {records:.0f} records/s"
