"""Where the root of a star waits for its workers: strangers neither enter nor keep others out.

All who have come are heard at the same time. A worker's two connections count once it has confirmed
them; it does so once, so that whatever an earlier attempt of it has left behind is just a stranger.
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

from detslurm.core.transports import proof
from detslurm.core.transports.health import DistributedError, join_timeout, peer_timeout
from detslurm.core.transports.proof import CONTROL, DATA, Claim, Stranger
from detslurm.core.transports.sockets import prepare

logger = logging.getLogger("detslurm.core")

_PATIENCE: Final = 60.0  # for a guest to prove itself: it costs nothing but its connection
_STRANGERS: Final = 64  # so many more connections than workers have are kept
_ENDED: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Pair(NamedTuple):
    """The two connections to a peer."""

    data: socket.socket
    control: socket.socket

    def close(self) -> None:
        self.data.close()
        self.control.close()


class _Guest:
    """A connection that has not proven itself, or has not confirmed that it is here to stay."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.until = time.monotonic() + _PATIENCE
        self.claim: Claim | None = None
        self._challenge = proof.new_nonce()
        self._heard = b""
        sock.setblocking(False)
        proof.check_user(sock, os.getuid())
        sock.send(proof.greeting(self._challenge))

    def hear(self, key: bytes, port: int, size: int) -> bool:
        """Take in what it says; whether it has said all. Raises `Stranger` or `OSError`."""
        wanted = proof.HELLO if self.claim is None else len(proof.CONFIRMED)
        more = self.sock.recv(wanted - len(self._heard))
        if not more:
            raise Stranger("it has hung up")
        self._heard += more
        if len(self._heard) < wanted:
            return False
        if self.claim is not None:
            return True
        self.claim, self._heard = self._answer(key, port, size), b""
        return self.claim.kind == DATA

    def _answer(self, key: bytes, port: int, size: int) -> Claim:
        try:
            claim = proof.checked_claim(self._heard, key, port, self._challenge)
            if not 0 < claim.worker < size or claim.kind not in (DATA, CONTROL):
                raise Stranger(f"number {claim.worker} is no place")
        except Stranger:
            self.sock.send(proof.REFUSED)
            raise
        self.sock.send(proof.proof_of(b"host", key, port, self._challenge, claim))
        return claim


class Door:
    """Lets the workers in, and learns when one that has joined dies."""

    def __init__(self, listener: socket.socket, key: bytes, size: int, what: str) -> None:
        self._listener, self._key, self._size, self._what = listener, key, size, what
        self._port = proof.port_of(listener.getsockname())
        self._deadline = time.monotonic() + join_timeout()
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._guests: dict[int, _Guest] = {}
        self._halves: dict[tuple[int, bytes], socket.socket] = {}
        self._pairs: dict[int, Pair] = {}
        listener.setblocking(False)

    def admit_all(self) -> dict[int, Pair]:
        """Wait for all workers. Raises `DistributedError` where one does not come, or dies."""
        try:
            while len(self._pairs) < self._size - 1:
                self._turn()
            return self._pairs
        except BaseException:
            for pair in self._pairs.values():
                pair.close()
            raise
        finally:
            for guest in self._guests.values():
                guest.sock.close()
            for sock in self._halves.values():
                sock.close()

    def _turn(self) -> None:
        for number, event in self._poll.poll(self._milliseconds()):
            if number == self._listener.fileno():
                self._accept()
            elif number in self._guests:
                self._hear(number)
            elif event & _ENDED:
                self._ended(number)
        now = time.monotonic()
        for number in [n for n, guest in self._guests.items() if guest.until < now]:
            self._refuse(number, "it says nothing")
        if now > self._deadline:
            missing = [i for i in range(1, self._size) if i not in self._pairs]
            raise DistributedError(
                f"{self._what}: after {join_timeout():g} s these have not joined: {missing}"
                " (DETSLURM_JOIN_TIMEOUT sets the time)"
            )

    def _milliseconds(self) -> int:
        until = min([self._deadline, *(guest.until for guest in self._guests.values())])
        return max(0, math.ceil((until - time.monotonic()) * 1000)) + 1

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as err:
            if err.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room(err)
            return  # who called has hung up
        try:
            guest = _Guest(sock)
        except (Stranger, OSError) as err:
            self._warn(err)
            sock.close()
            return
        self._guests[sock.fileno()] = guest
        self._poll.register(sock, select.POLLIN)
        members = len(self._halves) + 2 * len(self._pairs)
        if len(self._guests) + members > 2 * self._size + _STRANGERS:
            self._refuse(next(iter(self._guests)), "too many others have come")

    def _make_room(self, err: OSError) -> None:
        if not self._guests:
            raise too_many_files(self._what, self._size) from err
        self._refuse(next(iter(self._guests)), "no more files can be opened")

    def _hear(self, number: int) -> None:
        guest = self._guests[number]
        try:
            if not guest.hear(self._key, self._port, self._size):
                return
        except BlockingIOError:
            return
        except (Stranger, OSError) as err:
            self._refuse(number, err)
            return
        assert guest.claim is not None
        del self._guests[number]
        if guest.claim.kind == DATA:
            self._poll.modify(guest.sock, select.POLLRDHUP)
            self._halves[guest.claim.attempted] = guest.sock
        else:
            self._complete(guest.claim, guest.sock)

    def _complete(self, claim: Claim, control: socket.socket) -> None:
        data = self._halves.pop(claim.attempted, None)
        if data is None:  # it has broken: the worker learns of that by this one
            self._forget(control)
            return
        self._poll_no_more(data)
        before = self._pairs.get(claim.worker)
        if before is not None:
            logger.warning("%s: %d has joined again", self._what, claim.worker)
            self._poll_no_more(before.control)
            before.close()
        prepare(data, peer_timeout(), control=False)
        prepare(control, peer_timeout(), control=True)
        # For its end alone: what comes first is the word that it waits.
        self._poll.modify(control, select.POLLRDHUP)
        self._pairs[claim.worker] = Pair(data, control)

    def _ended(self, number: int) -> None:
        for attempted, half in self._halves.items():
            if half.fileno() == number:
                return self._half_ended(attempted)
        for index, pair in self._pairs.items():
            if pair.control.fileno() == number:
                raise DistributedError(f"{self._what}: {index} died while the others were joining")

    def _half_ended(self, attempted: tuple[int, bytes]) -> None:
        claims = [guest.claim for guest in self._guests.values()]
        if any(claim is not None and claim.attempted == attempted for claim in claims):
            # A worker that has confirmed and died is dead; one that has not gives up this attempt.
            self._poll_no_more(self._halves[attempted])
        else:
            self._forget(self._halves.pop(attempted))

    def _refuse(self, number: int, why: object) -> None:
        self._warn(why)
        guest = self._guests.pop(number)
        self._forget(guest.sock)
        if guest.claim is not None and guest.claim.attempted in self._halves:
            self._forget(self._halves.pop(guest.claim.attempted))

    def _warn(self, why: object) -> None:
        logger.warning("%s: a connection was refused: %s", self._what, why)

    def _forget(self, sock: socket.socket) -> None:
        self._poll_no_more(sock)
        sock.close()

    def _poll_no_more(self, sock: socket.socket) -> None:
        with suppress(KeyError):  # not for the second time
            self._poll.unregister(sock)


def allow_connections(size: int, what: str) -> None:
    """Raise this process's limit of open files where the connections of a star need that.

    Raises `DistributedError` where it may not be raised so far.
    """
    needed = len(list(Path("/proc/self/fd").iterdir())) + 2 * size + 2 * _STRANGERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed - _STRANGERS:  # what is left for the rest of the program
        raise too_many_files(what, size)


def too_many_files(what: str, size: int) -> DistributedError:
    """What stands in the way of so many peers, and what to do."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DistributedError(
        f"{what}: {size} of them need {2 * size} connections, and this process may open {hard}"
        " files: raise the hard limit (`ulimit -Hn`; LimitNOFILE of slurmd, /etc/security/"
        "limits.conf, PropagateResourceLimits in slurm.conf), or use MPI between the nodes"
    )
