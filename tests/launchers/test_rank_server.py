"""A node's launcher and the ranks that srun has started, where one of the two dies early."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import pytest

from detslurm._base.contract import ALLOCATION_ID, MASTER
from detslurm.launch import mpi_rank
from detslurm.launch.rank_server import RankServer, address
from detslurm.launch.supervision import BLOCKED


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A run of this test's own; its signals are forgotten at the end."""
    handlers, wakeup = {sig: signal.getsignal(sig) for sig in BLOCKED}, signal.set_wakeup_fd(-1)
    yield {MASTER: str(tmp_path), ALLOCATION_ID: "1.1.1", "MINE": "x"}
    signal.set_wakeup_fd(wakeup)
    for sig, handler in handlers.items():
        signal.signal(sig, handler)


def test_a_rank_that_dies_early_leaves_the_others_their_answer(env: dict[str, str]) -> None:
    """Before its answer is sent, and before it has read it; then the last end is seen."""
    server = RankServer(0, env, count=3)
    ranks = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for rank in ranks:
        rank.connect(address(env, 0))
    ranks[0].close()
    server.start()
    with ranks[1] as unread:
        assert select.select([unread], [], [], 60)[0]
    with ranks[2] as last:
        last.settimeout(60)
        assert json.loads(last.makefile().readline())["env"] == env
    assert select.select([server._all_gone], [], [], 60)[0]
    server._server.close()


@pytest.mark.parametrize("expected", [1, 3])
def test_ranks_say_how_many_they_are(env: dict[str, str], expected: int) -> None:
    """The user's arguments may have srun start more or fewer: the last one's end counts."""
    server = RankServer(0, env, count=expected)
    server.start()
    ranks = [mpi_rank.connected(address(env, 0)) for _ in range(2)]
    for rank in ranks:
        mpi_rank._tell_count(rank, {"SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_NODEID": "0"})
        rank.makefile().readline()
    ranks[0].close()
    ranks[1].settimeout(0.3)
    with pytest.raises(TimeoutError):  # it is looked after
        ranks[1].recv(1)
    ranks[1].close()
    assert select.select([server._all_gone], [], [], 60)[0]
    server._server.close()


def test_a_rank_waits_for_a_launcher_that_starts_later(env: dict[str, str]) -> None:
    """Another node's has started the rank already."""
    with futures.ThreadPoolExecutor(1) as pool:
        rank = pool.submit(mpi_rank.connected, address(env, 1))
        with pytest.raises(futures.TimeoutError):
            rank.result(0.2)
        server = RankServer(1, env, count=1)
        server.start()
        with rank.result(60) as connection:
            assert json.loads(connection.makefile().readline())["env"] == env
    assert select.select([server._all_gone], [], [], 60)[0]
    server._server.close()


def test_a_rank_that_waits_in_vain_says_so(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi_rank, "PATIENCE", 0.1)
    with pytest.raises(SystemExit, match="can't reach the launcher of its node"):
        mpi_rank.connected(address(env, 1))


def test_a_rank_dies_with_a_launcher_that_has_left_something_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its end is an error then, not the end of a file."""
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    rank, launcher = socket.socketpair()
    rank.sendall(b"unread")
    launcher.close()
    mpi_rank._die_with(rank)
    rank.close()
    assert ends == [137]
