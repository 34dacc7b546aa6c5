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


def after_a_restart(dist: DistributedContext) -> list[Stop]:
    """What this rank hears around the first batch of a run that goes on at batch 10,000."""
    stopper = Stopper(dist, cast(PreemptContext, Preempted()), lambda: False)
    return [stopper.agreed(10_000), stopper.after_batch(10_001)]


def test_a_run_that_goes_on_listens_from_its_first_batch() -> None:
    """What an earlier run has trained says nothing of how fast this one is."""
    assert on_ranks(2, after_a_restart) == [[Stop.NO, Stop.PREEMPTED]] * 2


def deaf_for(dist: DistributedContext) -> int:
    """How many batches follow an agreement until the next one, after a billion in no time."""
    preempt = Preempted()
    preempt.asked = -1
    stopper = Stopper(dist, cast(PreemptContext, preempt), lambda: False)
    stopper.agreed(0)
    stopper.agreed(trained := 10**9)
    batches = range(1, 10_000)
    return next(n for n in batches if stopper.after_batch(trained + n) is Stop.PREEMPTED)


def test_it_listens_now_and_then_however_fast_batches_were() -> None:
    """The next ones may be a thousand times slower: data that was in memory ends, say."""
    assert on_ranks(2, deaf_for) == [100, 100]


def test_the_chief_looks_and_the_others_acknowledge() -> None:
    """The chief's look acknowledges by itself."""
    heard = [Stop.NO, Stop.PREEMPTED, Stop.PREEMPTED]
    found: list[Any] = on_ranks(3, leave)
    assert found == [(heard, 3, 0), (heard, 0, 1), (heard, 0, 1)]
