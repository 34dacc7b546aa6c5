"""Switches the node's profiler on and off by the number of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from detslurm.core import Context


class ProfiledBatches(NamedTuple):
    """The first and the last batch, counted from 0, during which system metrics are recorded; None
    for all that follow."""

    first: int = 0
    last: int | None = None

    @classmethod
    def configured(cls, config: Mapping[str, Any]) -> ProfiledBatches | None:
        """The batches that a configuration names; None where it has no profiling."""
        profiling = config.get("profiling") or {}
        if not profiling.get("enabled"):
            return None
        return cls(profiling.get("begin_on_batch") or 0, profiling.get("end_after_batch"))

    def has(self, batch: int) -> bool:
        """Whether it is among them."""
        return self.first <= batch and (self.last is None or batch <= self.last)


class BatchProfiler:
    """The profiler of a training: on during some of its batches."""

    def __init__(self, core: Context, batches: ProfiledBatches) -> None:
        self._core, self._batches = core, batches
        self._is_on = core.profiler._sampling is not None

    def before(self, batch: int) -> None:
        """Switch it on or off for the next batch."""
        if self._batches.has(batch) is self._is_on:
            return
        self._is_on = not self._is_on
        if self._is_on:
            self._core._profile()
        else:
            self._core.profiler.off()
