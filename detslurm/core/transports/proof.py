"""What two processes say to each other before they are peers, and how both prove their key.

The chief greets with a challenge. The guest says who it is and proves the key for this challenge,
the chief proves it for the guest's. Both proofs name the port at which the guest has called, so
that nobody in between can pass them on from another port. A guest that has seen the chief's proof
on its second connection confirms it: only then does it count, and it never calls again.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from typing import Any, Final, NamedTuple

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


class Stranger(Exception):
    """Somebody else's process is on the other side."""


class Claim(NamedTuple):
    """What a guest says of a connection."""

    worker: int
    kind: int
    attempt: bytes
    """The same for the two connections that belong together."""
    nonce: bytes

    @property
    def attempted(self) -> tuple[int, bytes]:
        """Which attempt of which worker it belongs to."""
        return self.worker, self.attempt


def new_nonce() -> bytes:
    """What nobody has seen before."""
    return secrets.token_bytes(_NONCE)


def greeting(challenge: bytes) -> bytes:
    """The chief's first words."""
    return _MAGIC + challenge


def challenge_in(words: bytes) -> bytes:
    """The challenge of a chief's first words. Raises `Stranger`."""
    if not words.startswith(_MAGIC):
        raise Stranger("no peer")
    return words[len(_MAGIC) :]


def hello(key: bytes, port: int, challenge: bytes, claim: Claim) -> bytes:
    """The guest's words."""
    own = proof_of(b"guest", key, port, challenge, claim)
    return _HELLO.pack(claim.worker, claim.kind, claim.attempt, claim.nonce, own)


def checked_claim(words: bytes, key: bytes, port: int, challenge: bytes) -> Claim:
    """What a guest says, once it is proven. Raises `Stranger`."""
    *said, theirs = _HELLO.unpack(words)
    claim = Claim(*said)
    if not hmac.compare_digest(theirs, proof_of(b"guest", key, port, challenge, claim)):
        raise Stranger("it does not belong to this run")
    return claim


def proof_of(role: bytes, key: bytes, port: int, challenge: bytes, claim: Claim) -> bytes:
    """That whoever says this knows the key now, and at this port."""
    text = b"%s|%d|%d|%d|" % (role, port, claim.worker, claim.kind)
    return hmac.digest(key, text + claim.attempt + challenge + claim.nonce, "sha256")


def port_of(address: Any) -> int:
    """The port of an address, 0 for a unix socket: there the kernel says whose process it is."""
    return int(address[1]) if isinstance(address, tuple) else 0


def check_user(sock: socket.socket, own: int) -> None:
    """Raise `Stranger` where another user's process is at the other end of a unix socket."""
    if sock.family != socket.AF_UNIX:
        return
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", packed)
    if uid != own:
        raise Stranger(f"it belongs to user {uid}")
