"""Calls that leave for their time limit are told from those that are preempted."""

from __future__ import annotations

import pytest

from detslurm.launch.function import is_timed_out

CASES: list[tuple[float, float, float, bool]] = [
    # minutes that were asked for, the end that Slurm gives, now
    (60, 0, 47 * 60, False),
    (60, 0, 48 * 60, True),
    (0, 3600, 3600 - 220, False),
    (0, 3600, 3600 - 210, True),
    (600, 3600, 3590, False),  # what the user said counts
    (0, 0, 1e6, False),
]


@pytest.mark.parametrize(("minutes", "end", "now", "expected"), CASES)
def test_time_limits(minutes: float, end: float, now: float, expected: bool) -> None:
    """By the limit that was asked for, else by the end that Slurm gives."""
    found = is_timed_out(now=now, began=0.0, minutes=int(minutes), end=end, lead=120.0)
    assert found is expected
