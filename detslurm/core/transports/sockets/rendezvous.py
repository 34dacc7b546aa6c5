"""How the processes of a communicator find each other by sockets."""

from __future__ import annotations

import errno
import hmac
import logging
import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from detslurm._base import contract
from detslurm.core.transports.health import DistributedError, join_timeout, peer_timeout
from detslurm.core.transports.sockets import handshake
from detslurm.core.transports.sockets.acceptor import Acceptor, ConnectionPair, allow_connections
from detslurm.core.transports.sockets.handshake import (
    CONTROL,
    DATA,
    Address,
    PeerClaim,
    UnknownPeer,
)
from detslurm.core.transports.sockets.link import prepare

logger = logging.getLogger("detslurm.core")

_PATIENCE: Final = 5.0  # for an answer at first; a busy chief gets more each time
_LONGEST: Final = 20.0
ANY_ADDRESS: Final = ""  # all addresses of this host, IPv4 and IPv6
_CLOSING: Final = 65.0  # the kernel keeps the port of an ended connection for a minute


class Rendezvous(NamedTuple):
    """Where processes meet: the addresses to try in order, and the key of the run."""

    addresses: Sequence[Address]
    key: bytes
    chosen: bool = False
    """Whether the user chose the address: then another process there is an error."""
    bind_host: str | None = None


def host(where: Rendezvous, size: int, what: str) -> dict[int, ConnectionPair]:
    """As the root: wait until all workers have joined. Raises `DistributedError` if they don't."""
    allow_connections(size, what)
    with _listen(where, 2 * size) as listener:
        return Acceptor(listener, where.key, size, what).accept_all()


def join(where: Rendezvous, index: int, what: str) -> ConnectionPair:
    """As worker `index`: find the root, however late it is. Raises `DistributedError` if not."""
    deadline = time.monotonic() + join_timeout()
    pause, patience = 0.01, _PATIENCE
    problem: Exception | None = None
    while time.monotonic() < deadline:
        # Every round tries all addresses again: the root takes the first that is free, and may come
        # later, or again after it was restarted on another address.
        for address in where.addresses:
            try:
                return _open_pair(address, where.key, index, patience)
            except UnknownPeer as err:
                problem = err
                if where.chosen and len(where.addresses) == 1:
                    raise DistributedError(f"{what}: {err}") from None
            except OSError as err:
                problem = problem if isinstance(problem, UnknownPeer) else err
        time.sleep(pause)  # nothing reports when the other side begins to listen
        pause, patience = min(pause * 1.5, 0.25), min(patience * 1.1, _LONGEST)
    raise DistributedError(
        f"{what}: the chief could not be reached within {join_timeout():g} s ({problem});"
        " check the chief's address (chief_ip or DET_CHIEF_IP) and that it has started"
    )


def _open_pair(address: Address, key: bytes, index: int, patience: float) -> ConnectionPair:
    # The root pairs the two connections by this number. Only the second is confirmed, so that
    # an attempt that fails between the two leaves nothing behind that counts.
    attempt = handshake.new_nonce()
    data = _open_connection(
        address, key, PeerClaim(index, DATA, attempt, handshake.new_nonce()), patience
    )
    try:
        control = _open_connection(
            address, key, PeerClaim(index, CONTROL, attempt, handshake.new_nonce()), patience
        )
    except BaseException:
        data.close()
        raise
    return ConnectionPair(data, control)


def _open_connection(
    address: Address, key: bytes, claim: PeerClaim, patience: float
) -> socket.socket:
    until = time.monotonic() + patience
    sock = _connect(address, patience)
    port = handshake.port_of(address)
    try:
        try:
            challenge = handshake.challenge_in(_read(sock, handshake.GREETING, until))
        except UnknownPeer:
            raise UnknownPeer(f"what listens at {_name(address)} is not a peer") from None
        sock.sendall(handshake.hello(key, port, challenge, claim))
        expected = handshake.proof_of(b"host", key, port, challenge, claim)
        if not hmac.compare_digest(_read(sock, handshake.PROOF, until), expected):
            raise UnknownPeer(f"what listens at {_name(address)} belongs to another run")
        if claim.kind == CONTROL:
            sock.sendall(handshake.CONFIRMED)
        prepare(sock, peer_timeout(), control=claim.kind == CONTROL)
    except BaseException:
        sock.close()
        raise
    return sock


def _connect(address: Address, patience: float) -> socket.socket:
    if not isinstance(address, str):
        sock = socket.create_connection(address, timeout=patience)
        if sock.getsockname() == sock.getpeername():
            # Nothing listens yet, and the kernel has picked this port as the near end, too. Such a
            # connection with oneself keeps the chief from its port, also for a minute after an
            # orderly end: it is reset.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            raise ConnectionRefusedError(f"no process listens at {_name(address)}")
        return sock
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(patience)
    try:
        sock.connect(address)
        handshake.check_user(sock, os.getuid())
    except BaseException:
        sock.close()
        raise
    return sock


def _listen(where: Rendezvous, backlog: int) -> socket.socket:
    deadline = time.monotonic() + min(_CLOSING, join_timeout())
    warned = False
    while True:
        try:
            return _first_free(where, backlog)
        except OSError as err:
            names = ", ".join(map(_name, where.addresses))
            if err.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise DistributedError(f"can't listen at any of {names}: {err}") from err
            if not warned:
                logger.warning("waiting for %s: %s", names, err)
                warned = True
        time.sleep(0.25)  # the kernel doesn't report when a port is free again


def _first_free(where: Rendezvous, backlog: int) -> socket.socket:
    busy: OSError | None = None
    for address in where.addresses:
        try:
            return _bound(address, where.bind_host, backlog)
        except OSError as err:
            if err.errno != errno.EADDRINUSE:
                raise
            busy = err
        _refuse_another_run(address, where.key)
    assert busy is not None
    raise busy


def _refuse_another_run(address: Address, key: bytes) -> None:
    """Raise `DistributedError` if the listener there has our key, too: its workers and ours could
    not distinguish the two runs."""
    claim = PeerClaim(1, DATA, handshake.new_nonce(), handshake.new_nonce())
    try:
        _open_connection(address, key, claim, _PATIENCE).close()
    except (UnknownPeer, OSError):
        return
    raise DistributedError(
        "another run of yours waits for its processes here, and nothing distinguishes them from the"
        f" processes of this run: give each run a secret of its own in {contract.RUN_TOKEN}"
    )


def _bound(address: Address, bind_host: str | None, backlog: int) -> socket.socket:
    if isinstance(address, str):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        where: Address | tuple[object, ...] = address
    else:
        both = bind_host == ANY_ADDRESS and socket.has_dualstack_ipv6()
        target = "::" if both else address[0] if bind_host is None else bind_host or "0.0.0.0"
        family, _, _, _, where = socket.getaddrinfo(target, address[1], type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if both:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        sock.bind(where)
        sock.listen(max(backlog, 128))
    except OSError:
        sock.close()
        raise
    return sock


def _read(sock: socket.socket, size: int, until: float) -> bytes:
    data = b""
    while len(data) < size:
        sock.settimeout(max(0.001, until - time.monotonic()))  # however slowly the bytes come
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionResetError("the connection was closed")
        data += more
    return data


def _name(address: Address) -> str:
    return "a unix socket" if isinstance(address, str) else f"{address[0]}:{address[1]}"
