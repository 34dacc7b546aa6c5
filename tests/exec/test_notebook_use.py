"""When a notebook is idle: a pure decision on two looks, and the clock that adds up."""

from __future__ import annotations

import pytest

from detslurm._base.idle_types import IDLE_TYPES, IdleType
from detslurm.exec.tasks.idle import IdleClock
from detslurm.exec.tasks.notebook_use import Kernel, ServerUse, is_in_use

AT_REST = ServerUse((Kernel("k", "idle", 0, "10:00"),), (("1", "10:00"),), "10:00")
EMPTY = ServerUse((), (), "10:00")


def kernel(state: str = "idle", connections: int = 0, last_activity: str = "10:00") -> ServerUse:
    """A look at a server with one kernel and one terminal."""
    return AT_REST._replace(kernels=(Kernel("k", state, connections, last_activity),))


@pytest.mark.parametrize(
    ("now", "counts_for"),
    [
        (kernel("busy"), set(IDLE_TYPES)),
        (kernel("a state of a later Jupyter"), set(IDLE_TYPES)),
        (kernel("starting"), {"kernels_or_terminals"}),  # before its first client
        (kernel(connections=1), {"kernel_connections", "kernels_or_terminals"}),
        (kernel(last_activity="10:01"), set(IDLE_TYPES)),  # a cell that ran between two looks
        (AT_REST._replace(terminals=(("1", "10:01"),)), set(IDLE_TYPES)),
        (AT_REST._replace(last_request="10:01"), {"kernel_connections", "kernels_or_terminals"}),
        (AT_REST, {"kernels_or_terminals"}),
        (EMPTY._replace(last_request="10:01"), {"kernel_connections"}),
    ],
)
def test_what_counts_as_use(now: ServerUse, counts_for: set[IdleType]) -> None:
    """A running cell always does."""
    before = AT_REST if now.kernels else EMPTY
    assert {kind for kind in IDLE_TYPES if is_in_use(kind, now, before)} == counts_for


def test_idle_time_adds_up_from_look_to_look() -> None:
    """A use begins it again, a suspended job was not idle, and a failed look counts for nothing."""
    now = 0.0
    clock = IdleClock(30, 10, lambda: now)

    def look(at: float, *, in_use: bool) -> bool:
        nonlocal now
        now = at
        return clock.look(in_use=in_use)

    assert not look(10, in_use=False) and not look(20, in_use=False)
    assert not look(30, in_use=True)
    assert not look(3600, in_use=False)
    now = 7200
    clock.unknown()
    assert not look(7210, in_use=False)
    assert look(7221, in_use=False)
    assert not IdleClock(None, 10, lambda: now).look(in_use=False)
