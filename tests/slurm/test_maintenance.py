"""Jobs whose time limit reaches into a maintenance: by Slurm's own answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from detslurm.slurm import command
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.maintenance import maintenance_before, maintenance_text, maintenance_warning
from detslurm.slurm.pending_details import ReservedNodes

NOW = 1_000_000.0
HOUR = 3600.0


def reserved(name: str, begin: float, end: float, users: str = "maintenance") -> ReservedNodes:
    return ReservedNodes(name, NOW + begin, NOW + end, ("n1",), users)


def test_the_maintenance_in_the_way() -> None:
    """The next one that begins later and is over before the job starts; no other reservation."""
    course = reserved("course", HOUR, 2 * HOUR, "alice")
    begun = reserved("begun", -HOUR, HOUR)
    first, second = reserved("first", HOUR, 2 * HOUR), reserved("second", 3 * HOUR, 4 * HOUR)
    all_of_them = (course, begun, second, first)
    assert maintenance_before(all_of_them, NOW + 5 * HOUR, NOW) == first
    assert maintenance_before(all_of_them, NOW + HOUR / 2, NOW) is None
    assert maintenance_before((course, begun), NOW + 5 * HOUR, NOW) is None


def test_only_what_helps_is_said() -> None:
    """A shorter job that waits for other jobs would not start before the maintenance either."""
    found = reserved("maint", HOUR, 2 * HOUR)
    text = maintenance_text(found, NOW + 2 * HOUR, 58, NOW)
    assert text is not None and "maintenance maint begins" in text and "slurm.time: 0:58:00" in text
    assert maintenance_text(found, NOW + 2 * HOUR, 58, NOW + 2 * HOUR) is None


def answer(start: float) -> str:
    return f"sbatch: Job 7 to start at {start:.0f} using 1 processors on nodes n1 in partition p\n"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The calls to the controller, which shows one maintenance."""
    calls: list[Sequence[str]] = []
    line = f"ReservationName=maint StartTime={NOW + HOUR:.0f} EndTime={NOW + 2 * HOUR:.0f}"

    def run(argv: Sequence[str], **_: Any) -> str:
        calls.append(argv)
        return f"{line} Nodes=n[1-2] Flags=MAINT,SPEC_NODES\n"

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr("time.time", lambda: NOW)
    return calls


def test_a_job_that_starts_now_costs_no_call(asked: list[Sequence[str]]) -> None:
    """Nor does an answer that can't be read."""
    assert maintenance_warning(answer(NOW + 60), lambda _: "") is None
    assert maintenance_warning("", lambda _: "") is None
    assert asked == []


def test_a_shorter_time_is_tested(asked: list[Sequence[str]]) -> None:
    """With one question more; a refusal is no reason to fail."""
    options: list[str] = []

    def test(option: str) -> str:
        options.append(option)
        return answer(NOW)

    found = maintenance_warning(answer(NOW + 2 * HOUR), test)
    assert found is not None and "slurm.time: 0:59:00" in found
    assert (options, len(asked)) == (["--time=59"], 1)
    assert maintenance_warning(answer(NOW + 2 * HOUR), test, ["n3"]) is None  # not on its nodes

    def refuse(option: str) -> str:
        raise SlurmError("no")

    assert maintenance_warning(answer(NOW + 2 * HOUR), refuse) is None
