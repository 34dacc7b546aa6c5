"""One question, one answer: JSON lines over a Unix socket, between processes of one user."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from detslurm._base.identity import peer_user
from detslurm.slurm.errors import SlurmError


class NoScheduler(Exception):
    """No scheduler listens, or it went away before it answered."""


class AddressTaken(SlurmError):
    """Another user listens at the address."""


def listen(address: str) -> socket.socket | None:
    """The listening end, or None when another process has it."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        server.bind(address)
    except OSError:
        server.close()
        return None
    server.listen(128)
    return server


def ask(address: str, question: dict[str, Any], *, timeout: float = 30.0) -> Any:
    """The scheduler's answer. Raises NoScheduler if there is none, SlurmError if it refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as client:
        client.settimeout(timeout)
        try:
            client.connect(address)
            _same_user(client)
            client.sendall(json.dumps(question).encode() + b"\n")
            line = read_line(client)
        except (ConnectionError, TimeoutError, BlockingIOError) as error:
            raise NoScheduler from error
    if not line:
        raise NoScheduler
    answer = json.loads(line)
    if "error" in answer:
        raise SlurmError(answer["error"], answer.get("advice", ""))
    return answer["answer"]


def accept(server: socket.socket) -> socket.socket | None:
    """The next caller, if it is the same user; None otherwise."""
    connection, _ = server.accept()
    connection.settimeout(5.0)
    try:
        _same_user(connection)
    except SlurmError:
        connection.close()
        return None
    return connection


def read_line(connection: socket.socket) -> bytes:
    """Everything up to a newline; empty when the other side hung up."""
    chunks: list[bytes] = []
    while not chunks or not chunks[-1].endswith(b"\n"):
        chunk = connection.recv(1 << 16)
        if not chunk:
            return b""
        chunks.append(chunk)
    return b"".join(chunks)


def _same_user(connection: socket.socket) -> None:
    uid = peer_user(connection)
    if uid != os.getuid():
        raise AddressTaken(
            "the local cluster's address is taken by another user",
            f"User id {uid} listens where your scheduler should; set DETSLURM_ROOT elsewhere.",
        )
