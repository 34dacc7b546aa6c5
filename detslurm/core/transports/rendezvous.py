"""How the processes of a star find each other by sockets, and prove that they belong together."""

from __future__ import annotations

import errno
import hmac
import logging
import math
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from detslurm.core.transports.health import DistributedError, join_timeout, peer_timeout
from detslurm.core.transports.sockets import prepare

logger = logging.getLogger("detslurm.core")

Address = str | tuple[str, int]  # a unix socket, or host and port

_MAGIC: Final = b"detslurm-peer/1\n"
_NONCE: Final = 16
_PROOF: Final = 32
_HELLO = struct.Struct(f"<IB{_NONCE}s{_PROOF}s")
_PATIENCE: Final = 5.0  # for a stranger to say hello
_CLOSING: Final = 65.0  # the kernel keeps the port of an ended connection for a minute
_DATA, _CONTROL = 0, 1


class Meeting(NamedTuple):
    """Where a star meets: the addresses to try in order, and the key of the run."""

    addresses: Sequence[Address]
    key: bytes
    chosen: bool = False
    """Whether the user chose the address: then a stranger there is an error."""
    bind_host: str | None = None


class Pair(NamedTuple):
    """The two connections to a peer."""

    data: socket.socket
    control: socket.socket


class _Stranger(Exception):
    """Somebody else's process is on the other side."""


def host(meeting: Meeting, size: int, what: str) -> dict[int, Pair]:
    """As the root: wait until all workers have joined. Raises `DistributedError` if they don't."""
    with _listen(meeting, 2 * size) as listener:
        door = _Door(listener, meeting.key, size, what)
        try:
            while len(door.found) < 2 * (size - 1):
                door.admit_next()
        except BaseException:
            for sock in door.found.values():
                sock.close()
            raise
    found = door.found
    return {i: Pair(found[i, _DATA], found[i, _CONTROL]) for i in range(1, size)}


class _Door:
    """Where the root waits for the next worker, and learns when one that has joined dies."""

    def __init__(self, listener: socket.socket, key: bytes, size: int, what: str) -> None:
        self.found: dict[tuple[int, int], socket.socket] = {}
        self._listener, self._key, self._size, self._what = listener, key, size, what
        self._deadline = time.monotonic() + join_timeout()
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._watched: dict[int, int] = {}

    def admit_next(self) -> None:
        """Let the next connection in, or refuse it. Raises `DistributedError` where none comes."""
        self._await_guest()
        sock, _ = self._listener.accept()
        try:
            index, kind = _check_guest(sock, self._key, self._size, self.found)
        except (_Stranger, OSError, struct.error) as err:
            logger.warning("%s: a connection was refused: %s", self._what, err)
            sock.close()
            return
        self.found[index, kind] = sock
        prepare(sock, peer_timeout(), control=kind == _CONTROL)
        if kind == _CONTROL:
            # For its end alone: what comes first is the word that it waits.
            self._poll.register(sock, select.POLLRDHUP)
            self._watched[sock.fileno()] = index

    def _await_guest(self) -> None:
        left = max(0.0, self._deadline - time.monotonic())
        ready = [number for number, _ in self._poll.poll(math.ceil(left * 1000))]
        if not ready:
            missing = [i for i in range(1, self._size) if (i, _CONTROL) not in self.found]
            raise DistributedError(
                f"{self._what}: after {join_timeout():g} s these have not joined: {missing}"
                " (DETSLURM_JOIN_TIMEOUT sets the time)"
            )
        for number in ready:
            if number in self._watched:
                index = self._watched[number]
                raise DistributedError(f"{self._what}: {index} died while the others were joining")


def _check_guest(
    sock: socket.socket, key: bytes, size: int, found: dict[tuple[int, int], socket.socket]
) -> tuple[int, int]:
    sock.settimeout(_PATIENCE)
    _check_user(sock)
    challenge = secrets.token_bytes(_NONCE)
    sock.sendall(_MAGIC + challenge)
    index, kind, nonce, proof = _HELLO.unpack(_read(sock, _HELLO.size))
    if not hmac.compare_digest(proof, _proof(key, b"guest", challenge, nonce, index, kind)):
        sock.sendall(bytes(_PROOF))
        raise _Stranger("it does not belong to this run")
    if not 0 < index < size or kind not in (_DATA, _CONTROL) or (index, kind) in found:
        sock.sendall(bytes(_PROOF))
        raise _Stranger(f"number {index} is no place, or is taken")
    sock.sendall(_proof(key, b"host", challenge, nonce, index, kind))
    return index, kind


def join(meeting: Meeting, index: int, what: str) -> Pair:
    """As worker `index`: find the root, however late it is. Raises `DistributedError` if not."""
    deadline = time.monotonic() + join_timeout()
    pause = 0.01
    problem: Exception | None = None
    while time.monotonic() < deadline:
        for address in meeting.addresses:
            try:
                return _enter_twice(address, meeting.key, index)
            except _Stranger as err:
                problem = err
                if meeting.chosen and len(meeting.addresses) == 1:
                    raise DistributedError(f"{what}: {err}") from None
            except OSError as err:
                problem = problem if isinstance(problem, _Stranger) else err
        time.sleep(pause)  # nothing tells when the other side begins to listen
        pause = min(pause * 1.5, 0.25)
    raise DistributedError(
        f"{what}: the chief could not be reached within {join_timeout():g} s ({problem});"
        " check the chief's address (chief_ip or DET_CHIEF_IP) and that it has started"
    )


def _enter_twice(address: Address, key: bytes, index: int) -> Pair:
    data = _enter(address, key, index, _DATA)
    try:
        return Pair(data, _enter(address, key, index, _CONTROL))
    except BaseException:
        data.close()
        raise


def _enter(address: Address, key: bytes, index: int, kind: int) -> socket.socket:
    sock = _connect(address)
    try:
        greeting = _read(sock, len(_MAGIC) + _NONCE)
        if not greeting.startswith(_MAGIC):
            raise _Stranger(f"what listens at {_name(address)} is no peer")
        challenge, nonce = greeting[len(_MAGIC) :], secrets.token_bytes(_NONCE)
        proof = _proof(key, b"guest", challenge, nonce, index, kind)
        sock.sendall(_HELLO.pack(index, kind, nonce, proof))
        expected = _proof(key, b"host", challenge, nonce, index, kind)
        if not hmac.compare_digest(_read(sock, _PROOF), expected):
            raise _Stranger(f"what listens at {_name(address)} belongs to another run")
        prepare(sock, peer_timeout(), control=kind == _CONTROL)
    except BaseException:
        sock.close()
        raise
    return sock


def _connect(address: Address) -> socket.socket:
    if not isinstance(address, str):
        sock = socket.create_connection(address, timeout=_PATIENCE)
        if sock.getsockname() == sock.getpeername():
            # Nobody listens yet, and the kernel has picked this port as the near end, too. Such a
            # connection with oneself keeps the chief from its port, also for a minute after an
            # orderly end: it is reset.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            raise ConnectionRefusedError(f"nobody listens at {_name(address)}")
        return sock
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(_PATIENCE)
    try:
        sock.connect(address)
        _check_user(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _listen(meeting: Meeting, backlog: int) -> socket.socket:
    deadline = time.monotonic() + min(_CLOSING, join_timeout())
    told = False
    while True:
        try:
            return _first_free(meeting, backlog)
        except OSError as err:
            names = ", ".join(map(_name, meeting.addresses))
            if err.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise DistributedError(f"can't listen at any of {names}: {err}") from err
            if not told:
                logger.warning("waiting for %s: %s", names, err)
                told = True
        time.sleep(0.25)  # the kernel doesn't tell when a port is free again


def _first_free(meeting: Meeting, backlog: int) -> socket.socket:
    *others, last = meeting.addresses
    for address in others:
        try:
            return _bound(address, meeting.bind_host, backlog)
        except OSError as err:
            if err.errno != errno.EADDRINUSE:
                raise
    return _bound(last, meeting.bind_host, backlog)


def _bound(address: Address, bind_host: str | None, backlog: int) -> socket.socket:
    if isinstance(address, str):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        where: Address | tuple[object, ...] = address
    else:
        target = address[0] if bind_host is None else bind_host
        family, _, _, _, where = socket.getaddrinfo(target, address[1], type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(where)
        sock.listen(max(backlog, 128))
    except OSError:
        sock.close()
        raise
    return sock


def _check_user(sock: socket.socket) -> None:
    if sock.family != socket.AF_UNIX:
        return
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", packed)
    if uid != os.getuid():
        raise _Stranger(f"it belongs to user {uid}")


def _proof(key: bytes, role: bytes, challenge: bytes, nonce: bytes, index: int, kind: int) -> bytes:
    text = b"%s|%d|%d|" % (role, index, kind)
    return hmac.digest(key, text + challenge + nonce, "sha256")


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionResetError("the connection was closed")
        data += more
    return data


def _name(address: Address) -> str:
    return "a unix socket" if isinstance(address, str) else f"{address[0]}:{address[1]}"
