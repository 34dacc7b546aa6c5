"""A server for one user's browser: on a Unix socket, or on this machine's loopback address.

It is Python's own, with a thread for each request. It ends with Ctrl-C, and with the signals that
the command turns into that, or after a while without requests.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication

from detslurm._base.addresses import LOOPBACK
from detslurm._base.identity import peer_user
from detslurm.look.loopback_peer import loopback_user
from detslurm.sdk.errors import LifecycleError

_PATIENCE: Final = 60.0
"""For how long a reader may take to send a request, or to take a piece of an answer."""

_FIRST_LINE: Final = 5.0
"""For how long a reader may be connected in silence, as a browser is ahead of its requests."""

_REFUSED: Final = str(HTTPStatus.FORBIDDEN.value)


class _Handler(WSGIRequestHandler):
    """Answers in silence: a terminal is no log of requests."""

    timeout = _FIRST_LINE

    def parse_request(self) -> bool:
        """Read the headers; the first line has come."""
        self.connection.settimeout(_PATIENCE)
        return super().parse_request()

    def address_string(self) -> str:
        return ""  # resolving it could take seconds

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """An answer was sent; a refused client keeps no server from ending."""
        if str(code) != _REFUSED and isinstance(self.server, LookServer):
            self.server.last_request = time.monotonic()


class LookServer(ThreadingMixIn, WSGIServer):
    """A server that answers its own user; `last_request` is when it last did, by the monotonic
    clock."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: Any, application: WSGIApplication) -> None:
        self.last_request = time.monotonic()
        super().__init__(address, _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        """Take the address. Its name is not looked up, which could take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether it comes from a process of the same user, or of an unknown user.

        Others are not even listened to, for they could take all places by saying nothing. sshd
        becomes the user before it connects; an old sshd stays root.
        """
        return self.user_of(request) in (os.getuid(), 0, None)

    def user_of(self, request: socket.socket) -> int | None:
        """The user at the other end of a connection; None if that is not known."""
        raise NotImplementedError

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no error."""

    def serve_until_idle(self, idle_seconds: float) -> None:
        """Answer requests until none has come for that many seconds."""
        while (rest := self.last_request + idle_seconds - time.monotonic()) > 0:
            self.timeout = min(rest, _PATIENCE)
            self.handle_request()


class UnixServer(LookServer):
    """A server on a Unix socket that only its user can open.

    A socket that a killed process has left is replaced; the own socket is removed at the end.
    Raises `LifecycleError` if another process listens there, or something else has that name.
    """

    address_family = socket.AF_UNIX

    def __init__(self, path: Path, application: WSGIApplication) -> None:
        self.path = path
        self._made: os.stat_result | None = None
        with _alone_in(path.parent):
            super().__init__(str(path), application)
            self._made = path.lstat()

    def server_bind(self) -> None:
        """Make the socket, which is private from its first moment."""
        _remove_stale(self.path)
        before = os.umask(0o177)
        try:
            super().server_bind()
        finally:
            os.umask(before)

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """Take the next connection, whose end has no address here."""
        connection, _ = super().get_request()
        return connection, ("", 0)

    def user_of(self, request: socket.socket) -> int:
        """The user at the other end, as the kernel keeps it."""
        return peer_user(request)

    def server_close(self) -> None:
        """Stop listening, and remove the socket unless another process has replaced it."""
        super().server_close()
        if self._made is None:
            return  # it never listened
        with suppress(OSError), _alone_in(self.path.parent):
            if os.path.samestat(self.path.lstat(), self._made):
                self.path.unlink()


class LoopbackServer(LookServer):
    """A server on this machine's loopback address, which every user of the machine can reach: so
    the application has to demand a token. Port 0 is any free port. Raises `LifecycleError` if the
    port is taken."""

    def __init__(self, port: int, application: WSGIApplication) -> None:
        try:
            super().__init__((LOOPBACK, port), application)
        except OSError as error:
            raise LifecycleError(f"port {port} of this machine: {error.strerror}") from error
        self.port = int(self.server_address[1])

    def user_of(self, request: socket.socket) -> int | None:
        """The user at the other end, as the kernel lists connections."""
        return loopback_user(request)


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Make, judge and remove sockets one after the other.

    Until its server listens, a socket looks like a killed process's.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # NFS locks no directory
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _remove_stale(path: Path) -> None:
    """Remove a socket on which no process listens any more."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise LifecycleError(f"{path} is not a socket: remove it")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
    raise LifecycleError(
        f"a `detslurm ui` of this store runs on this machine already, at {path}:"
        " open that page, or end it"
    )
