"""The nice values for a wanted order: as wanted, allowed, and with the least change."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detslurm.sdk.jobs.order import LEAST_PRIORITY, OrderError, Rank, in_order, moved, nice_values


def ranks(*pairs: tuple[int, int]) -> list[Rank]:
    """Jobs 1, 2, ... by priority and nice."""
    return [Rank(number, *pair) for number, pair in enumerate(pairs, start=1)]


def after(wanted: list[Rank], changes: dict[int, int]) -> list[Rank]:
    return [rank.with_nice(changes.get(rank.job_id, rank.nice)) for rank in wanted]


queues = st.lists(st.tuples(st.integers(2, 9), st.integers(0, 4)), min_size=2, max_size=4).map(
    lambda pairs: ranks(*pairs)
)


@given(queues, st.data())
def test_least_change_gives_the_order(queue: list[Rank], data: st.DataObject) -> None:
    """As wanted, by nice values of 0 and more, and no other values do it with less change."""
    job, anchor = data.draw(st.permutations([rank.job_id for rank in queue]))[:2]
    wanted = moved(queue, job, anchor, ahead=data.draw(st.booleans()))
    least = _by_trying(wanted, job)
    if least is None:
        with pytest.raises(OrderError):
            nice_values(wanted, job, least_priority=LEAST_PRIORITY)
        return
    changes = nice_values(wanted, job, least_priority=LEAST_PRIORITY)
    result = after(wanted, changes)
    assert in_order(result) == result
    assert all(nice >= 0 for nice in changes.values())
    assert all(rank.priority >= LEAST_PRIORITY for rank in result)
    assert _cost(wanted, result, job) == least
    assert bool(changes) == (in_order(wanted) != wanted)


def _cost(before: list[Rank], result: list[Rank], job: int) -> int:
    pairs = zip(before, result, strict=True)
    return sum(abs(a.nice - b.nice) * (1 if a.job_id == job else 2) for a, b in pairs)


def _by_trying(wanted: list[Rank], job: int) -> int | None:
    """The least cost of all allowed nice values that give the order, with room at the new place."""
    choices = [range(rank.nice + rank.priority - LEAST_PRIORITY + 1) for rank in wanted]
    costs = []
    for nices in itertools.product(*choices):
        result = [rank.with_nice(nice) for rank, nice in zip(wanted, nices, strict=True)]
        if _holds(wanted, result):
            costs.append(_cost(wanted, result, job))
    return min(costs, default=None)


def _holds(wanted: list[Rank], result: list[Rank]) -> bool:
    """A pair that is in a new order has a point to spare."""
    for (a, b), (x, y) in zip(itertools.pairwise(wanted), itertools.pairwise(result), strict=True):
        spare = 0 if a.place < b.place else 1
        if x.priority - spare < y.priority + (x.job_id > y.job_id):
            return False
    return True


@given(queues, st.data())
def test_an_operator_moves_the_job_alone(queue: list[Rank], data: st.DataObject) -> None:
    """Without a bound on nice there is always a way."""
    job, anchor = data.draw(st.permutations([rank.job_id for rank in queue]))[:2]
    wanted = moved(queue, job, anchor, ahead=True)
    result = after(wanted, nice_values(wanted, job, least_nice=None, least_priority=None))
    assert in_order(result) == result


def test_a_job_with_room_moves_alone() -> None:
    """The jobs of a queue with one default priority: one changes by two points."""
    queue = ranks(*[(959, 41)] * 5)
    wanted = moved(queue, 5, 1, ahead=True)
    assert [rank.job_id for rank in wanted] == [5, 1, 2, 3, 4]
    assert nice_values(wanted, 5, least_priority=LEAST_PRIORITY) == {5: 39}


def test_where_it_has_no_room_the_others_give_way() -> None:
    """Nothing ahead of the new place is touched, nor what is far behind it."""
    queue = ranks((1000, 0), (900, 0), (899, 0), (890, 0), (500, 0))
    wanted = moved(queue, 4, 2, ahead=True)
    assert nice_values(wanted, 4, least_priority=LEAST_PRIORITY) == {2: 12, 3: 11}
    assert moved(queue, 1, 4, ahead=True) == in_order(queue)


def test_too_small_priorities_are_refused() -> None:
    """Where a nice would be cut off at the least priority, no order can be made."""
    queue = ranks((2, 0), (2, 0))
    with pytest.raises(OrderError, match="too small"):
        nice_values(moved(queue, 2, 1, ahead=True), 2, least_priority=LEAST_PRIORITY)
