"""The handshake of two processes before they are peers, in which both prove that they have the key.

The chief sends a challenge. The worker names itself and proves the key for this challenge, the
chief proves it for the worker's. Both proofs name the port that the worker has connected to, so
that no process in between can relay them from another port. A worker that has seen the chief's
proof on its second connection confirms it: only then does it count, and it never connects again.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from typing import Any, Final, NamedTuple

from detslurm._base.identity import peer_user

Address = str | tuple[str, int]  # a unix socket, or host and port

DATA, CONTROL = 0, 1
CONFIRMED: Final = b"+"
PROOF: Final = 32
REFUSED: Final = bytes(PROOF)

_MAGIC: Final = b"detslurm-peer/2\n"
_NONCE: Final = 16
GREETING: Final = len(_MAGIC) + _NONCE
_HELLO = struct.Struct(f"<IB{_NONCE}s{_NONCE}s{PROOF}s")
HELLO: Final = _HELLO.size


class UnknownPeer(Exception):
    """The process on the other side does not belong to this run."""


class PeerClaim(NamedTuple):
    """A worker's claim of a connection."""

    worker: int
    kind: int
    attempt: bytes
    """The same for the two connections that belong together."""
    nonce: bytes

    @property
    def attempted(self) -> tuple[int, bytes]:
        """The attempt and the worker that it belongs to."""
        return self.worker, self.attempt


def new_nonce() -> bytes:
    """A random number that was never used before."""
    return secrets.token_bytes(_NONCE)


def greeting(challenge: bytes) -> bytes:
    """The chief's first message."""
    return _MAGIC + challenge


def challenge_in(message: bytes) -> bytes:
    """The challenge in a chief's first message. Raises `UnknownPeer`."""
    if not message.startswith(_MAGIC):
        raise UnknownPeer("not a peer")
    return message[len(_MAGIC) :]


def hello(key: bytes, port: int, challenge: bytes, claim: PeerClaim) -> bytes:
    """The worker's message."""
    own = proof_of(b"worker", key, port, challenge, claim)
    return _HELLO.pack(claim.worker, claim.kind, claim.attempt, claim.nonce, own)


def checked_claim(message: bytes, key: bytes, port: int, challenge: bytes) -> PeerClaim:
    """A worker's claim, once it is proven. Raises `UnknownPeer`."""
    *fields, theirs = _HELLO.unpack(message)
    claim = PeerClaim(*fields)
    # In constant time: a comparison that ends at the first wrong byte lets others guess byte by
    # byte.
    if not hmac.compare_digest(theirs, proof_of(b"worker", key, port, challenge, claim)):
        raise UnknownPeer("it does not belong to this run")
    return claim


def proof_of(role: bytes, key: bytes, port: int, challenge: bytes, claim: PeerClaim) -> bytes:
    """Proof that the sender has the key now, and at this port."""
    text = b"%s|%d|%d|%d|" % (role, port, claim.worker, claim.kind)
    return hmac.digest(key, text + claim.attempt + challenge + claim.nonce, "sha256")


def port_of(address: Any) -> int:
    """The port of an address, 0 for a unix socket: there the kernel knows whose process it is."""
    return int(address[1]) if isinstance(address, tuple) else 0


def check_user(sock: socket.socket, own: int) -> None:
    """Raise `UnknownPeer` where another user's process is at the other end of a unix socket."""
    if sock.family != socket.AF_UNIX:
        return
    # The kernel's statement about the process that has connected, which it can't forge.
    uid = peer_user(sock)
    if uid != own:
        raise UnknownPeer(f"it belongs to user {uid}")
