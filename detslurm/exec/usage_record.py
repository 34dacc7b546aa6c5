"""The runner's part of a run's usage: it adds up what the node agents report, and keeps it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from detslurm.slurm.allocated import allocated
from detslurm.store import TrialDir, fs
from detslurm.store.run_usage import Requested, RunUsage, keep_usage

FIRST: Final = 30.0
"""Seconds: a run that is over earlier never gets a file, for its end record is enough."""
_PART: Final = 0.05  # of its age: a file is left as it is for that time


class UsageRecord:
    """The usage of one run; readers see it after half a minute, then less and less often."""

    def __init__(self, trial: TrialDir, run: int, *, begun: float, nodes: int, slots: int) -> None:
        self._trial, self._run = trial, run
        cpus, memory = allocated()
        self._usage = RunUsage(
            requested=Requested(nodes=nodes, slots=slots, cpus=cpus, memory=memory)
        )
        self._begun = begun  # monotonic
        self._due: float | None = None

    def add(self, sample: Mapping[str, Any]) -> None:
        """Take in a sample of one node; a malformed sample is ignored."""
        try:
            self._usage.add(sample, time.time())
        except (KeyError, TypeError, ValueError):
            return
        age = time.monotonic() - self._begun
        if age >= (FIRST if self._due is None else self._due):
            self._due = age + max(FIRST, _PART * age)
            keep_usage(self._trial, self._run, self._usage)

    def for_end(self) -> dict[str, Any]:
        """The fields of the end record; empty where nothing is known."""
        return {"usage": self._usage.to_dict()} if self._usage.node_seconds else {}

    def discard(self) -> None:
        """Remove the file, now that the end record has it all."""
        if self._due is not None:
            fs.discard(str(self._trial.usage_path(self._run)))
