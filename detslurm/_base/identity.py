"""The secret of one run's processes: their meeting point, and the proof of membership."""

from __future__ import annotations

import hmac
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from detslurm._base import contract

KEY_FILE = Path(".config/detslurm/peer-key")

# The same in every process of a run, and another in every other run.
_RUN_IDS = (
    contract.ALLOCATION_ID,
    "SLURM_JOB_ID",
    "SLURM_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "MASTER_PORT",
    "PMIX_NAMESPACE",
)
# Below the ports of outgoing connections, and apart from those where launchers meet.
_LOWEST, _HIGHEST = 10000, 20000
_CANDIDATES = 16
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def peer_user(peer: socket.socket) -> int:
    """The user id of the process that made the other end of a Unix socket; the kernel keeps it."""
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])


def is_ours(peer: socket.socket) -> bool:
    """Whether the other end is a process of the same user: such names have no permissions."""
    return peer_user(peer) == os.getuid()


def run_name(environ: Mapping[str, str], *more: object) -> str:
    """A name that only the processes of this run give."""
    ids = [f"{name}={environ[name]}" for name in (contract.RUN_TOKEN, *_RUN_IDS) if name in environ]
    return "|".join([str(os.getuid()), *ids, *map(str, more)])


def name_on_node(environ: Mapping[str, str], what: str) -> str:
    """An abstract socket's name for something of this user's, that others can't take first."""
    return f"\0detslurm.{key_of(f'{os.getuid()} {what}', secret_on_node(environ)).hex()[:32]}"


def key_of(name: str, secret: bytes) -> bytes:
    """With this the processes of a run prove to each other that they belong to it."""
    return hmac.digest(secret, name.encode("utf-8", "surrogateescape"), "sha256")


def secret_of_user(environ: Mapping[str, str]) -> bytes:
    """Return a secret of this user's processes on all nodes alone: a token, or a file at home.

    Raises `RuntimeError` when there is neither.
    """
    if environ.get(contract.RUN_TOKEN):
        return environ[contract.RUN_TOKEN].encode()
    path = Path.home() / KEY_FILE
    try:
        if not path.exists():
            _make_key(path)
        return _read_key(path)
    except OSError as err:
        raise RuntimeError(
            f"the key {path}, with which the processes of a run recognise each other, can't be"
            f" used ({err.strerror}); give all of them the same secret in {contract.RUN_TOKEN}"
        ) from err


def secret_on_node(environ: Mapping[str, str]) -> bytes:
    """For names inside a node: as `secret_of_user`, empty where there is none.

    Other users can take a guessable name first, but no more: the kernel names the listener's user.
    """
    try:
        return secret_of_user(environ)
    except RuntimeError:
        return b""


def _read_key(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(handle, "rb") as file:
        known = os.fstat(handle)
        found = file.read()
    if known.st_uid != os.getuid() or known.st_mode & 0o077 or len(found) < 16:
        raise RuntimeError(f"{path} must be readable by its owner alone (mode 0600) and not empty")
    return found


def _make_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    temporary.touch(mode=0o600)
    try:
        temporary.write_bytes(os.urandom(32))
        path.hardlink_to(temporary)
    except FileExistsError:
        pass  # another process was faster: its key counts
    finally:
        temporary.unlink()


def derived_ports(key: bytes) -> list[int]:
    """Ports for holders of this key in the order to try them; others can't predict them."""
    return [_LOWEST + number % (_HIGHEST - _LOWEST) for number in _numbers(key)]


def socket_names(key: bytes) -> list[str]:
    """Names of unix sockets, as `derived_ports`, in the abstract namespace: they need no file."""
    return [f"\0detslurm.{number:x}" for number in _numbers(key)]


def _numbers(key: bytes) -> Iterator[int]:
    for n in range(_CANDIDATES):
        digest = hmac.digest(key, b"place %d" % n, "sha256")
        yield int.from_bytes(digest[:8], "big")
