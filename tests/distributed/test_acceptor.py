"""Accepting the ranks of a communicator: stalls and unknown peers while the ranks join."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from detslurm._base.addresses import _is_own
from detslurm.core import DistributedError
from detslurm.core.transports.sockets import handshake, rendezvous
from detslurm.core.transports.sockets.acceptor import Acceptor, ConnectionPair
from detslurm.core.transports.sockets.handshake import CONTROL, DATA, Address, PeerClaim
from detslurm.core.transports.sockets.rendezvous import ANY_ADDRESS, Rendezvous, host, join
from tests.distributed.ranks import free_port

REPOSITORY = Path(__file__).resolve().parents[2]
KEY = b"key"
opened: list[socket.socket | ConnectionPair] = []


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DETSLURM_JOIN_TIMEOUT", "120")
    yield
    while opened:
        opened.pop().close()


def kept(sock: socket.socket) -> socket.socket:
    opened.append(sock)
    return sock


def kept_pair(pair: ConnectionPair) -> ConnectionPair:
    opened.append(pair)
    return pair


def enter(where: Rendezvous, index: int) -> ConnectionPair:
    return kept_pair(join(where, index, "the ranks"))


def receive(where: Rendezvous, size: int) -> dict[int, ConnectionPair]:
    return {i: kept_pair(pair) for i, pair in host(where, size, "the ranks").items()}


@pytest.fixture(params=["unix", "tcp"])
def where(request: pytest.FixtureRequest) -> Rendezvous:
    name = f"\0detslurm-test.{os.getpid()}.{time.monotonic_ns()}"
    return Rendezvous([name if request.param == "unix" else ("127.0.0.1", free_port())], KEY)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def call(address: Address) -> socket.socket:
    """A connection to who listens there, as soon as somebody does."""
    while True:
        try:
            return kept(rendezvous._connect(address, 30.0))
        except OSError:
            time.sleep(0.01)


def proven(address: Address, kind: int, attempt: bytes) -> socket.socket:
    """A connection of worker 1 that has proven itself, and hears no answer."""
    sock = call(address)
    challenge = handshake.challenge_in(sock.recv(handshake.GREETING, socket.MSG_WAITALL))
    claim = PeerClaim(1, kind, attempt, handshake.new_nonce())
    sock.sendall(handshake.hello(KEY, handshake.port_of(address), challenge, claim))
    assert any(sock.recv(handshake.PROOF, socket.MSG_WAITALL))
    return sock


def talk(chiefs: ConnectionPair, workers: ConnectionPair) -> None:
    """Both connections lead from the one to the other."""
    for one, other in zip(chiefs, workers, strict=True):
        one.sendall(b"down")
        assert other.recv(4, socket.MSG_WAITALL) == b"down"
        other.sendall(b"up")
        assert one.recv(2, socket.MSG_WAITALL) == b"up"


def meet(chief: Future[dict[int, ConnectionPair]], where: Rendezvous, index: int) -> None:
    worker = enter(where, index)
    talk(chief.result(60)[index], worker)


@pytest.mark.parametrize("left", ["open", "closed"])
@pytest.mark.parametrize("kinds", [[DATA], [DATA, CONTROL]])
def test_an_attempt_that_was_given_up(
    where: Rendezvous, pool: ThreadPoolExecutor, kinds: list[int], left: str
) -> None:
    """A worker that stalled calls again: what it left behind keeps it from nothing."""
    chief = pool.submit(receive, where, 2)
    attempt = handshake.new_nonce()
    old = [proven(where.addresses[0], kind, attempt) for kind in kinds]
    if left == "closed":
        for sock in reversed(old):
            sock.close()
    meet(chief, where, 1)


def test_a_chief_that_stalls(
    where: Rendezvous, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers have called several times when it looks up: the last call counts."""
    monkeypatch.setattr(rendezvous, "_PATIENCE", 0.05)
    calls = threading.Semaphore(0)
    enter_twice = rendezvous._open_pair

    def counted(*args: object) -> ConnectionPair:
        calls.release()
        return enter_twice(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(rendezvous, "_open_pair", counted)
    with rendezvous._listen(where, 8) as listener:
        workers = [pool.submit(enter, where, index) for index in (1, 2)]
        for _ in range(12):
            assert calls.acquire(timeout=120)
        monkeypatch.setattr(rendezvous, "_PATIENCE", 30.0)
        found = Acceptor(listener, KEY, 3, "the ranks").accept_all()
    for index, worker in enumerate(workers, start=1):
        talk(kept_pair(found[index]), worker.result(60))


def test_silent_unknown_peers(where: Rendezvous, pool: ThreadPoolExecutor) -> None:
    """However many they are, who belongs here enters at once."""
    chief = pool.submit(receive, where, 3)
    for number in range(100):
        sock = call(where.addresses[0])
        if number % 2:
            sock.send(b"?")
    first, second = enter(where, 1), enter(where, 2)
    found = chief.result(60)
    talk(found[1], first)
    talk(found[2], second)


def test_a_worker_that_joins_again(where: Rendezvous, pool: ThreadPoolExecutor) -> None:
    """The new connection replaces the old one, whose end may not be known yet."""
    chief = pool.submit(receive, where, 3)
    before = enter(where, 1)
    after = enter(where, 1)
    second = enter(where, 2)
    found = chief.result(60)
    talk(found[1], after)
    talk(found[2], second)
    assert before.control.recv(1) == b""


def test_a_go_between_is_refused(pool: ThreadPoolExecutor) -> None:
    """It hands on what both say, from a port that it got first: then both would trust it."""
    port, own = free_port(), free_port()
    where = Rendezvous([("127.0.0.1", port)], KEY)
    chief = pool.submit(receive, where, 2)
    with socket.create_server(("127.0.0.1", own)) as between:
        pool.submit(_relay, between, port)
        with pytest.raises(DistributedError, match="belongs to another run"):
            join(Rendezvous([("127.0.0.1", own)], KEY, chosen=True), 1, "the ranks")
    meet(chief, where, 1)


@pytest.mark.parametrize("caller", ["127.0.0.1", "::1"])
def test_a_chief_that_knows_its_name_as_a_loopback_address(
    caller: str, pool: ThreadPoolExecutor
) -> None:
    """It can't tell by which address the others call, or of which kind: any does."""
    if not _is_own(caller):
        caller = "127.0.0.1"  # there is no IPv6 here
    port = free_port()
    chief = pool.submit(receive, Rendezvous([("chief", port)], KEY, bind_host=ANY_ADDRESS), 2)
    meet(chief, Rendezvous([(caller, port)], KEY), 1)


def _relay(between: socket.socket, port: int) -> None:
    near, _ = between.accept()
    with near, call(("127.0.0.1", port)) as far:
        for one, other, size in (
            (far, near, handshake.GREETING),
            (near, far, handshake.HELLO),
            (far, near, handshake.PROOF),
        ):
            other.sendall(one.recv(size, socket.MSG_WAITALL))


def test_an_unknown_peer_that_trickles(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What answers byte by byte does not keep a worker from the next address."""
    monkeypatch.setattr(rendezvous, "_PATIENCE", 1.0)
    taken, free = free_port(), free_port()
    where = Rendezvous([("127.0.0.1", taken), ("127.0.0.1", free)], KEY)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", taken)) as unknown:
        pool.submit(_trickle, unknown, over)
        try:
            meet(pool.submit(receive, where, 2), where, 1)
        finally:
            over.set()


def _trickle(unknown: socket.socket, over: threading.Event) -> None:
    caller, _ = unknown.accept()
    with caller:
        while not over.wait(0.1):
            caller.send(handshake.greeting(bytes(16))[:1])


@pytest.mark.parametrize(("hard", "fits"), [(400, True), (120, False)])
def test_the_limit_of_open_files(hard: int, fits: bool) -> None:
    """A star of 60 outgrows a soft limit of 100 files; where it may not, it says what to raise."""
    port = free_port()
    limits = f"ulimit -S -n 100; ulimit -H -n {hard}; exec"
    chief = subprocess.Popen(
        ["sh", "-c", f"{limits} {sys.executable} -m tests.distributed.test_acceptor {port}"],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
    )
    where = Rendezvous([("127.0.0.1", port)], KEY)
    if fits:
        workers = ThreadPoolExecutor(8).map(lambda i: enter(where, i), range(1, 60))
        pairs = list(workers)
    _, said = chief.communicate(timeout=120)
    if fits:
        assert chief.returncode == 0, said
        assert len(pairs) == 59
    else:
        assert "may open 120 files: raise the hard limit" in said


if __name__ == "__main__":
    sys.exit(len(host(Rendezvous([("127.0.0.1", int(sys.argv[1]))], KEY), 60, "all")) != 59)


def test_two_runs_that_nothing_tells_apart(where: Rendezvous, pool: ThreadPoolExecutor) -> None:
    """The second one's workers could join the first, and both would train with the other's."""
    spare = f"\0detslurm-test.{os.getpid()}.{time.monotonic_ns()}"
    both = where._replace(addresses=[*where.addresses, spare])
    first = pool.submit(receive, both, 2)
    kept(call(where.addresses[0]))  # it listens
    with pytest.raises(DistributedError, match="another run of yours waits"):
        host(both, 2, "the ranks")
    enter(both, 1)
    assert list(first.result()) == [1]
    other = Rendezvous(both.addresses, b"another key")  # such a run takes the next name
    second = pool.submit(receive, other, 2)
    enter(other, 1)
    assert list(second.result()) == [1]
