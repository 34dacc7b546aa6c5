"""The use of an experiment's budget by its runs: numbered facts, each with the total so far.

They exist only where there is a budget. Readers read the last fact alone, so that a look costs a
few calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detslurm.store import fs
from detslurm.store.experiment import ExperimentDir
from detslurm.store.facts import FactLog


class Spending:
    """The recorded slot-seconds of an experiment; any number of processes may add to them.

    Each method raises `StoreError` where the facts can't be read or written.
    """

    def __init__(self, experiment: ExperimentDir) -> None:
        self._log = FactLog(experiment.path / "spending")
        self._count = 0
        self._total = 0.0

    def total(self) -> float:
        """All recorded slot-seconds."""
        last = max(self._count, self._log.last_listed())
        # A look costs a listing: a fact that was lost ends nothing, for the next has the total.
        while fs.exists(self._log.name(last + 1), expected=last == self._count):
            last += 1
        if last > self._count:
            self._take(last)
        return self._total

    @property
    def known(self) -> float:
        """The total as it was read or written last."""
        return self._total

    def add(self, slot_seconds: float, **about: Any) -> float:
        """Record more slot-seconds; returns the total. `about` names the trial and its run."""
        while not self._put(self.total() + slot_seconds, about):
            pass
        return self._total

    def raise_to(self, slot_seconds: float, **about: Any) -> None:
        """Record the difference to a total of slot-seconds, if the recorded total is smaller."""
        while self.total() < slot_seconds and not self._put(slot_seconds, about):
            pass

    def _put(self, total: float, about: Mapping[str, Any]) -> bool:
        """Record a total after the last that is known; False if that is not the last."""
        fs.ensure_directory(self._log.path)
        record = {"type": "used", "slot_seconds": total - self._total, "total": total, **about}
        if not self._log.put(self._count + 1, record):
            self._take(self._count + 1)
            return False
        self._count, self._total = self._count + 1, total
        return True

    def _take(self, number: int) -> None:
        """Know the total of the last fact that can be read, up to this number."""
        for known in range(number, self._count, -1):
            fact = self._log.read(known, expected=True) or {}
            if "total" in fact:
                self._total = max(self._total, float(fact["total"]))
                break
        self._count = number
