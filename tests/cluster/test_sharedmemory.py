"""What killed jobs leave in memory is removed, what others use is not."""

from __future__ import annotations

import multiprocessing
import time

from tests.cluster import sharedmemory


def test_only_what_nobody_uses_is_removed() -> None:
    since = time.time() - 1
    left = sharedmemory.FOLDER / f"vader_segment.{time.time_ns()}"
    left.touch()
    lock = multiprocessing.get_context("spawn").Lock()
    used = sharedmemory.FOLDER / f"sem.{lock._semlock.name[1:]}"  # type: ignore[attr-defined]
    assert used.exists()
    sharedmemory.clean(since)
    assert used.exists()
    assert not left.exists()
