"""How the root of a communicator accepts its workers: unknown peers neither join nor block others.

All connections are served at the same time. A worker's two connections count once it has confirmed
them; it does so once, so that what an earlier attempt of it has left behind is an unknown peer.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import resource
import select
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from detslurm.core.transports.health import DistributedError, join_timeout, peer_timeout
from detslurm.core.transports.sockets import handshake
from detslurm.core.transports.sockets.handshake import CONTROL, DATA, PeerClaim, UnknownPeer
from detslurm.core.transports.sockets.link import prepare

logger = logging.getLogger("detslurm.core")

_PATIENCE: Final = 60.0  # for a candidate to prove itself: it costs nothing but its connection
_SPARE_CONNECTIONS: Final = 64  # connections kept beyond the workers'
_ENDED: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class ConnectionPair(NamedTuple):
    """The two connections to a peer."""

    data: socket.socket
    control: socket.socket

    def close(self) -> None:
        self.data.close()
        self.control.close()


class _Candidate:
    """A connection that has not proven itself, or has not confirmed that it stays."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.until = time.monotonic() + _PATIENCE
        self.claim: PeerClaim | None = None
        self._challenge = handshake.new_nonce()
        self._received = b""
        # Never blocking: a candidate that is slow, or never sends, must not hold up the others.
        sock.setblocking(False)
        handshake.check_user(sock, os.getuid())
        sock.send(handshake.greeting(self._challenge))

    def receive(self, key: bytes, port: int, size: int) -> bool:
        """Receive; whether its message is complete. Raises `UnknownPeer` or `OSError`."""
        wanted = handshake.HELLO if self.claim is None else len(handshake.CONFIRMED)
        # No byte more than the message: what follows on a data connection is its first frame
        # already.
        more = self.sock.recv(wanted - len(self._received))
        if not more:
            raise UnknownPeer("it has closed the connection")
        self._received += more
        if len(self._received) < wanted:
            return False
        if self.claim is not None:
            return True
        self.claim, self._received = self._answer(key, port, size), b""
        return self.claim.kind == DATA

    def _answer(self, key: bytes, port: int, size: int) -> PeerClaim:
        try:
            claim = handshake.checked_claim(self._received, key, port, self._challenge)
            if not 0 < claim.worker < size or claim.kind not in (DATA, CONTROL):
                raise UnknownPeer(f"{claim.worker} is not the number of a worker")
        except UnknownPeer:
            self.sock.send(handshake.REFUSED)
            raise
        self.sock.send(handshake.proof_of(b"host", key, port, self._challenge, claim))
        return claim


class Acceptor:
    """Accepts the workers, and learns when a joined worker dies."""

    def __init__(self, listener: socket.socket, key: bytes, size: int, what: str) -> None:
        self._listener, self._key, self._size, self._what = listener, key, size, what
        self._port = handshake.port_of(listener.getsockname())
        self._deadline = time.monotonic() + join_timeout()
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._candidates: dict[int, _Candidate] = {}
        self._halves: dict[tuple[int, bytes], socket.socket] = {}
        self._pairs: dict[int, ConnectionPair] = {}
        # A caller may hang up between poll() and accept(), which would wait for the next caller.
        listener.setblocking(False)

    def accept_all(self) -> dict[int, ConnectionPair]:
        """Wait for all workers. Raises `DistributedError` where one does not come, or dies."""
        try:
            while len(self._pairs) < self._size - 1:
                self._poll_once()
            return self._pairs
        except BaseException:
            # Workers that have joined learn by the end of their connections that the group failed.
            for pair in self._pairs.values():
                pair.close()
            raise
        finally:
            for candidate in self._candidates.values():
                candidate.sock.close()
            for sock in self._halves.values():
                sock.close()

    def _poll_once(self) -> None:
        for number, event in self._poll.poll(self._milliseconds()):
            if number == self._listener.fileno():
                self._accept()
            elif number in self._candidates:
                self._receive_from(number)
            # A connection that has proven itself sends nothing here yet: its end is all that
            # matters.
            elif event & _ENDED:
                self._ended(number)
        now = time.monotonic()
        for number in [n for n, candidate in self._candidates.items() if candidate.until < now]:
            self._refuse(number, "it sends nothing")
        if now > self._deadline:
            missing = [i for i in range(1, self._size) if i not in self._pairs]
            raise DistributedError(
                f"{self._what}: after {join_timeout():g} s these have not joined: {missing}"
                " (DETSLURM_JOIN_TIMEOUT sets the time)"
            )

    def _milliseconds(self) -> int:
        until = min([self._deadline, *(candidate.until for candidate in self._candidates.values())])
        # Rounded up and one more: waking just before a deadline would poll again without waiting.
        return max(0, math.ceil((until - time.monotonic()) * 1000)) + 1

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as err:
            # The call stays in the listener's queue, so that poll() reports it again at once:
            # without room made for it this would be a busy loop.
            if err.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room(err)
            return  # the caller has hung up
        try:
            candidate = _Candidate(sock)
        except (UnknownPeer, OSError) as err:
            self._warn(err)
            sock.close()
            return
        self._candidates[sock.fileno()] = candidate
        self._poll.register(sock, select.POLLIN)
        # Many unknown connections (a port scanner) must not use up all descriptors: the oldest
        # goes.
        members = len(self._halves) + 2 * len(self._pairs)
        if len(self._candidates) + members > 2 * self._size + _SPARE_CONNECTIONS:
            self._refuse(next(iter(self._candidates)), "too many others have connected")

    def _make_room(self, err: OSError) -> None:
        if not self._candidates:
            raise too_many_files(self._what, self._size) from err
        self._refuse(next(iter(self._candidates)), "no more files can be opened")

    def _receive_from(self, number: int) -> None:
        candidate = self._candidates[number]
        try:
            if not candidate.receive(self._key, self._port, self._size):
                return
        except BlockingIOError:
            return
        except (UnknownPeer, OSError) as err:
            self._refuse(number, err)
            return
        assert candidate.claim is not None
        del self._candidates[number]
        if candidate.claim.kind == DATA:
            self._poll.modify(candidate.sock, select.POLLRDHUP)
            self._halves[candidate.claim.attempted] = candidate.sock
        else:
            self._complete(candidate.claim, candidate.sock)

    def _complete(self, claim: PeerClaim, control: socket.socket) -> None:
        data = self._halves.pop(claim.attempted, None)
        if data is None:  # it has broken: the worker learns of that by this connection
            self._forget(control)
            return
        self._poll_no_more(data)
        before = self._pairs.get(claim.worker)
        # A worker that was restarted, or gave up an attempt just after its confirmation was sent:
        # its latest attempt counts.
        if before is not None:
            logger.warning("%s: %d has joined again", self._what, claim.worker)
            self._poll_no_more(before.control)
            before.close()
        prepare(data, peer_timeout(), control=False)
        prepare(control, peer_timeout(), control=True)
        # For its end alone: the first message on it reports that it waits.
        self._poll.modify(control, select.POLLRDHUP)
        self._pairs[claim.worker] = ConnectionPair(data, control)

    def _ended(self, number: int) -> None:
        for attempted, half in self._halves.items():
            if half.fileno() == number:
                return self._half_ended(attempted)
        for index, pair in self._pairs.items():
            if pair.control.fileno() == number:
                raise DistributedError(f"{self._what}: {index} died while the others were joining")

    def _half_ended(self, attempted: tuple[int, bytes]) -> None:
        claims = [candidate.claim for candidate in self._candidates.values()]
        if any(claim is not None and claim.attempted == attempted for claim in claims):
            # A confirmed worker that has died is dead; any other worker gives up this attempt.
            self._poll_no_more(self._halves[attempted])
        else:
            self._forget(self._halves.pop(attempted))

    def _refuse(self, number: int, why: object) -> None:
        self._warn(why)
        candidate = self._candidates.pop(number)
        self._forget(candidate.sock)
        if candidate.claim is not None and candidate.claim.attempted in self._halves:
            self._forget(self._halves.pop(candidate.claim.attempted))

    def _warn(self, why: object) -> None:
        logger.warning("%s: a connection was refused: %s", self._what, why)

    def _forget(self, sock: socket.socket) -> None:
        self._poll_no_more(sock)
        sock.close()

    def _poll_no_more(self, sock: socket.socket) -> None:
        with suppress(KeyError):  # not for the second time
            self._poll.unregister(sock)


def allow_connections(size: int, what: str) -> None:
    """Raise this process's limit of open files where the connections of a communicator need that.

    Raises `DistributedError` where it may not be raised so far.
    """
    needed = len(list(Path("/proc/self/fd").iterdir())) + 2 * size + 2 * _SPARE_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed - _SPARE_CONNECTIONS:  # the rest of the program needs some
        raise too_many_files(what, size)


def too_many_files(what: str, size: int) -> DistributedError:
    """The error where a process may not open enough files, with the remedy."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DistributedError(
        f"{what}: {size} of them need {2 * size} connections, and this process may open {hard}"
        " files: raise the hard limit (`ulimit -Hn`; LimitNOFILE of slurmd, /etc/security/"
        "limits.conf, PropagateResourceLimits in slurm.conf), or use MPI between the nodes"
    )
