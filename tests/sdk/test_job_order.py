"""The nice values for a wanted order: as wanted, and allowed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from detslurm.sdk.jobs.order import LEAST_PRIORITY, Rank, in_order, moved, nice_values


def ranks(*pairs: tuple[int, int]) -> list[Rank]:
    """Jobs 1, 2, ... by priority and nice."""
    return [Rank(number, *pair) for number, pair in enumerate(pairs, start=1)]


def after(wanted: list[Rank], changes: dict[int, int]) -> list[Rank]:
    return [rank.with_nice(changes.get(rank.job_id, rank.nice)) for rank in wanted]


queues = st.lists(st.tuples(st.integers(2, 9), st.integers(0, 4)), min_size=2, max_size=4).map(
    lambda pairs: ranks(*pairs)
)


@given(queues, st.data())
def test_the_values_give_the_order(queue: list[Rank], data: st.DataObject) -> None:
    """As wanted, by nice values of 0 and more, and no job ahead of the new place changes."""
    job, anchor = data.draw(st.permutations([rank.job_id for rank in queue]))[:2]
    wanted = moved(queue, job, anchor, ahead=data.draw(st.booleans()))
    allowed = nice_values(wanted, job, least_priority=LEAST_PRIORITY)
    changes = nice_values(wanted, job, least_priority=None)
    assert changes is not None and allowed in (changes, None)
    small = any(rank.priority < LEAST_PRIORITY for rank in after(wanted, changes))
    assert small == (allowed is None)
    result = after(wanted, changes)
    assert in_order(result) == result
    assert all(nice >= 0 for nice in changes.values())
    place = [rank.job_id for rank in wanted].index(job)
    assert not changes.keys() & {rank.job_id for rank in wanted[:place]}
    assert bool(changes) == (in_order(wanted) != wanted)


@given(queues, st.data())
def test_an_operator_moves_the_job_alone(queue: list[Rank], data: st.DataObject) -> None:
    """Without a bound on nice there is always a way."""
    job, anchor = data.draw(st.permutations([rank.job_id for rank in queue]))[:2]
    wanted = moved(queue, job, anchor, ahead=True)
    changes = nice_values(wanted, job, least_nice=None, least_priority=None)
    assert changes is not None
    result = after(wanted, changes)
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
    wanted = moved(queue, 2, 1, ahead=True)
    assert nice_values(wanted, 2, least_priority=LEAST_PRIORITY) is None
