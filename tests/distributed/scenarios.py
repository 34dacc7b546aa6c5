"""What ranks do together: each function is run by every rank of a group, and asserts."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from detslurm.core import DistributedContext, DistributedError
from detslurm.core.transports.sockets.link import SocketLink

MB = 1_000_000
DEATH = "TEST_DEATH"
"""Names the file in which a rank writes when it dies; one machine has one such clock."""


def _note_death() -> None:
    if DEATH in os.environ:
        Path(os.environ[DEATH]).write_text(str(time.monotonic()))


def settle() -> None:
    """Let the others come out of the call before, so that they are in the next one."""
    time.sleep(0.3)


def collectives(dist: DistributedContext) -> None:
    """Every call gives what is documented, for objects from nothing to a few MB."""
    for thing in (None, "", {"rank": (1, 2.5)}, b"x" * 200, b"y" * 70_000, b"z" * (3 * MB)):
        mine = (dist.rank, thing)
        everybody = [(rank, thing) for rank in range(dist.size)]
        assert dist.allgather(mine) == everybody
        assert dist.gather(mine) == (everybody if dist.rank == 0 else None)
        assert dist.broadcast(mine) == (0, thing)
        here = dist.allgather_local((dist.local_rank, dist.cross_rank, thing))
        assert here == [(i, dist.cross_rank, thing) for i in range(dist.local_size)]
        found = dist.gather_local((dist.local_rank, thing))
        expected = [(i, thing) for i in range(dist.local_size)]
        assert found == (expected if dist.local_rank == 0 else None)
        assert dist.broadcast_local((dist.cross_rank, dist.local_rank)) == (dist.cross_rank, 0)


def unequal(dist: DistributedContext) -> None:
    """Objects of very different sizes keep their order; a node may make more local calls."""
    sizes = [(10 ** (rank % 7)) for rank in range(dist.size)]
    for _ in range(3):
        found = dist.allgather(os.urandom(1) * sizes[dist.rank])
        assert [len(item) for item in found] == sizes
        for _ in range(dist.cross_rank):
            assert len(dist.allgather_local(None)) == dist.local_size
        gathered = dist.gather(bytes(sizes[dist.rank]))
        assert gathered is None or [len(item) for item in gathered] == sizes
    for number in range(300):
        assert dist.broadcast(number if dist.rank == 0 else None) == number


def large(dist: DistributedContext, megabytes: int = 100) -> None:
    """A large object arrives whole, from the chief and from a worker."""
    size = megabytes * MB
    data = os.urandom(MB) * megabytes if dist.rank == 0 else None
    got = dist.broadcast(data)
    assert len(got) == size
    digests = dist.allgather(hashlib.blake2b(got).hexdigest())
    assert len(set(digests)) == 1
    del data
    found = dist.gather(got if dist.rank == dist.size - 1 else None)
    assert found is None or hashlib.blake2b(found[-1]).hexdigest() == digests[0]


def huge(dist: DistributedContext) -> None:
    """1 GB from the chief to all, and from a worker to the chief."""
    got = dist.broadcast(_gigabyte() if dist.rank == 0 else None)
    assert len(got) == 1 << 30 and got[-1] == 7
    last = dist.size - 1
    found = dist.gather(got if dist.rank == last else None)
    assert found is None or (len(found[last]) == 1 << 30 and found[last][-1] == 7)


def _gigabyte() -> bytearray:
    data = bytearray(1 << 30)
    data[-1] = 7
    return data


def _raises(dist: DistributedContext, call: Any, words: str) -> None:
    with pytest.raises(DistributedError, match=words):
        call()
        for _ in range(3):  # a rank whose call asks nothing of others learns at a later one
            dist.allgather(None)
    with pytest.raises(DistributedError):
        dist.allgather(None)


def different_calls(dist: DistributedContext) -> None:
    """One rank gathers while the others wait for a broadcast: all raise, nobody hangs."""
    first = dist.rank == 0
    _raises(dist, lambda: dist.gather(1) if first else dist.broadcast(1), "ranks disagree")


def different_calls_large(dist: DistributedContext) -> None:
    """Large objects sent at each other in different calls: all raise, nobody hangs."""
    data = bytes(20 * MB)
    first = dist.rank == 0
    _raises(dist, lambda: dist.broadcast(data) if first else dist.gather(data), "ranks disagree")


def different_scopes(dist: DistributedContext) -> None:
    """One rank calls among the node while the others call among all: all raise."""
    first = dist.rank == 0
    _raises(
        dist,
        lambda: dist.allgather(1) if first else dist.broadcast_local(1),
        r"ranks disagree|left the group",
    )


class Unpicklable:
    """Says why not at length, and in no text that can be encoded."""

    def __reduce__(self) -> str:
        raise TypeError("\udcff" + "é" * 100_000)


def unpicklable(dist: DistributedContext) -> None:
    """A rank that can't send its object says why; the others don't wait for it."""
    if dist.rank == dist.size - 1:
        settle()
        with pytest.raises(TypeError):
            dist.gather(Unpicklable())
    else:
        with pytest.raises(DistributedError, match="can't be pickled"):
            dist.allgather(dist.gather(1))


def interrupted(dist: DistributedContext) -> None:
    """A call that an exception of a signal handler cut short ends the group: half a message may
    have been read."""
    health = dist._group._health
    if dist.rank == dist.size - 1:

        def interrupt(_: int, frame: FrameType | None) -> None:
            if frame is not None and frame.f_code is SocketLink._receive_some.__code__:
                signal.setitimer(signal.ITIMER_REAL, 0)
                raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        with pytest.raises(KeyboardInterrupt):
            dist.broadcast(None)
    while health.failure is None:  # learned from the connection's other end
        time.sleep(0.01)
    with pytest.raises(DistributedError, match="cut short by KeyboardInterrupt"):
        dist.allgather(None)


def one_leaves(dist: DistributedContext) -> None:
    """Who calls on after a rank has closed its context is told so."""
    dist.allgather(None)
    if dist.rank == dist.size - 1:
        dist.close()
        dist.close()
        with pytest.raises(RuntimeError, match="closed"):
            dist.allgather(None)
        return
    with pytest.raises(DistributedError, match=r"left the group|died"):
        dist.allgather(None)


def goodbyes(dist: DistributedContext) -> None:
    """What a rank sent right before it left still arrives."""
    last = dist.size - 1
    if dist.rank == last:
        dist.gather(b"x" * MB)
        return
    time.sleep(0.3)
    found = dist.gather(None)
    assert found is None or len(found[last]) == MB


def early_leaver(dist: DistributedContext) -> None:
    """Who has the chief's object may leave while another rank still has to fetch its own."""
    if dist.rank == dist.size - 1:
        communicator = dist._group._cross
        fetch = communicator._broadcast_from

        def late(*args: Any) -> Any:
            time.sleep(1.5)
            return fetch(*args)

        communicator._broadcast_from = late
    data = os.urandom(MB) * 3 if dist.rank == 0 else None
    assert len(dist.broadcast(data)) == 3 * MB


def slow(dist: DistributedContext) -> None:
    """A rank that takes longer than the peer timeout, even stopped, is not taken for dead."""
    if dist.rank == dist.size - 1:
        if os.fork() == 0:  # stops its parent for longer than the timeout
            parent = os.getppid()
            os.kill(parent, signal.SIGSTOP)
            time.sleep(2.5)
            os.kill(parent, signal.SIGCONT)
            os._exit(0)
        os.wait()
    assert dist.allgather(dist.rank) == list(range(dist.size))


def killed(dist: DistributedContext) -> None:
    """A rank killed in the middle makes all others raise, also where its children live on."""
    if dist.rank == dist.size - 1:
        dist.allgather(None)
        settle()
        if os.fork() == 0:  # as a data loader's worker, with copies of all connections
            os.closerange(0, 3)  # the test waits for the end of the output
            time.sleep(150)
            os._exit(0)
        _note_death()
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(DistributedError, match="died"):
        while True:
            dist.allgather(None)
    assert time.monotonic() - began < 100  # long before the child ends


def leaves_children(dist: DistributedContext) -> None:
    """A rank takes its leave at once, also where its children live on."""
    dist.allgather(None)
    if (child := os.fork()) == 0:  # as a data loader's worker, with copies of all connections
        os.closerange(0, 3)
        time.sleep(150)
        os._exit(0)
    began = time.monotonic()
    dist.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert time.monotonic() - began < 100  # long before the child ends


def side_by_side(dist: DistributedContext) -> None:
    """The answers of one's own group only."""
    mine = os.environ.get("DET_ALLOCATION_ID") or os.environ["PMIX_NAMESPACE"]
    for _ in range(20):
        assert dist.allgather(mine) == [mine] * dist.size


def fails(dist: DistributedContext) -> None:
    """One rank ends by an exception while the others wait for it."""
    dist.allgather(None)
    if dist.rank == dist.size - 1:
        settle()
        _note_death()
        raise OSError("the disk is full")
    dist.allgather(None)
