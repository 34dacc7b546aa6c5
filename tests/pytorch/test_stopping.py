"""Ranks leave after the same batch, and each tells its node."""

from __future__ import annotations

from typing import Any, cast

from detslurm.core import DistributedContext, PreemptContext
from detslurm.pytorch._stopping import Stop, Stopper
from tests.core.ranks import on_ranks


class Preempted:
    """Preempted once asked for the second time; counts what was acknowledged."""

    asked = acknowledged = 0

    def should_preempt(self) -> bool:
        self.asked += 1
        return self.asked > 1

    def acknowledge_preemption_signal(self) -> None:
        self.acknowledged += 1


def leave(dist: DistributedContext) -> tuple[list[Stop], int, int]:
    """What this rank heard, how often it looked, how often it acknowledged."""
    preempt = Preempted()
    stopper = Stopper(dist, cast(PreemptContext, preempt), lambda: False)
    heard = [stopper.agreed(batch) for batch in (1, 2, 3)]
    return heard, preempt.asked, preempt.acknowledged


def test_the_chief_looks_and_the_others_acknowledge() -> None:
    """The chief's look acknowledges by itself."""
    heard = [Stop.NO, Stop.PREEMPTED, Stop.PREEMPTED]
    found: list[Any] = on_ranks(3, leave)
    assert found == [(heard, 3, 0), (heard, 0, 1), (heard, 0, 1)]
