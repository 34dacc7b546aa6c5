"""How a walk through a store reads its experiments: one after the other, or several at a time."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from detslurm.sdk.experiments import listing
from detslurm.sdk.experiments.listing import ReadTime, is_worth_threads
from detslurm.store import Store

MS = 0.001


@pytest.mark.parametrize(
    ("elapsed", "computed", "expected"),
    [
        ([0.2] * 5, [0.19] * 5, False),  # a warm local disk
        ([4.0] * 5, [0.3] * 5, True),  # a file server with a millisecond a call
        ([1.0] * 5, [0.3] * 5, True),
        ([9.0] * 5, [7.0] * 5, False),  # many trials to fold: they compute, one at a time
        ([0.2, 80.0, 0.2, 30.0, 0.2], [0.19] * 5, False),  # a machine that is busy now and then
        ([80.0, 4.0, 4.0, 0.2, 4.0], [70.0, 0.3, 0.3, 0.1, 0.3], True),  # the first one imports
        ([4.0] * 4, [0.3] * 4, False),  # not known yet
        ([], [], False),
    ],
)
def test_threads_are_worth_their_cost_where_readings_wait(
    elapsed: list[float], computed: list[float], expected: bool
) -> None:
    """The last few readings decide, by what most of them have waited and computed."""
    pairs = zip(elapsed, computed, strict=True)
    assert is_worth_threads([ReadTime(MS * e, MS * c) for e, c in pairs]) is expected


@pytest.mark.parametrize("waits", [True, False])
def test_the_rest_is_read_by_threads_where_the_first_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """In the same order, and the next walk over a group goes on as this one ended."""
    readers: list[int] = []

    def reading(directory: Any, **options: Any) -> Any:
        readers.append(threading.get_ident())
        if waits:
            time.sleep(3 * MS)
        return directory.id

    def judged(last: Any) -> bool:
        assert all((one.elapsed - one.computed > MS) for one in last) or not waits
        return waits and len(last) == 5

    monkeypatch.setattr(listing, "read", reading)
    monkeypatch.setattr(listing, "is_worth_threads", judged)
    store, times = Store.open(tmp_path / "store"), deque[ReadTime](maxlen=5)
    numbers = [*range(1, 61)]
    for alone in (5, 0):
        readers.clear()
        found = [*listing.read_all(store, numbers, times)]
        assert found == [(number, number) for number in numbers]
        mine = readers.count(threading.get_ident())
        assert mine == (alone if waits else len(numbers))
