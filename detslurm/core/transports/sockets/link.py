"""Links over stream sockets: unix sockets inside a node, TCP between nodes.

A connection lives as long as its peer: the kernel closes it when the process dies, and its
keep-alive probes detect a host that is gone, however long living peers compute in silence.
"""

from __future__ import annotations

import os
import socket
import struct
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from detslurm.core.transports.health import CHECK_INTERVAL, DistributedError, Health
from detslurm.core.transports.link import HEAD, Frame, Parts, head, split
from detslurm.core.transports.sockets.failure_detector import FailureDetector

# Up to this size a frame is joined and travels with one system call on each side.
_SMALL: Final = 1 << 16
# How often a receiver looks before it sleeps: to wake it takes the kernel several times as long as
# a peer that is on time needs to answer. Between two looks others may have the core, so that peers
# that share it, ranks beyond the number of cores, are not held up.
_LOOKS: Final = 20
_TIMEVAL = struct.pack("@ll", 0, int(CHECK_INTERVAL * 1e6))

_open_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def keep_from_children(sock: socket.socket) -> None:
    """A forked child (a data loader's worker) with a copy would keep its dead parent "alive"."""
    _open_sockets.add(sock)


def _forget_in_child() -> None:
    # close(2) in the child leaves the parent's connection open: only a shutdown would end it for
    # both.
    for sock in list(_open_sockets):
        sock.close()


os.register_at_fork(after_in_child=_forget_in_child)


def prepare(sock: socket.socket, timeout: float, *, control: bool) -> None:
    """Options of a connection between peers; nothing here ends a living, slow peer's."""
    keep_from_children(sock)
    sock.settimeout(None)
    # The kernel's timeouts let a blocking call come back now and then to check the group, without
    # the poll(2) before each call that Python's own timeouts cost.
    if not control:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL)
    if sock.family == socket.AF_UNIX:
        return
    # Collective calls are small requests and answers: Nagle's algorithm could delay each by 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # One of the two connections is probed; its end is reported for the peer as a whole.
    if not control:
        return
    # Its kernel answers these for a process that computes, or is stopped, or holds the GIL.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(timeout / 3)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(timeout / 6)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1000, int(timeout * 900)))


class SocketLink:
    """Frames to and from one peer over a blocking socket."""

    def __init__(
        self,
        sock: socket.socket,
        peer: int,
        detector: FailureDetector,
        health: Health,
        on_wait: Callable[[], None],
    ) -> None:
        self._sock, self._peer = sock, peer
        self._detector, self._health = detector, health
        self._wait = on_wait
        self._ahead = b""  # read from the socket already, but not used yet

    @property
    def _name(self) -> str:
        return self._detector.names[self._peer]

    def send(self, code: int, serial: int, parts: Parts) -> None:
        """Send one frame; large parts go out as they are, without a copy."""
        start, size = head(code, serial, parts)
        try:
            if size < _SMALL:
                self._send_all(b"".join((start, *parts)))
                return
            self._send_all(start)
            for part in parts:
                self._send_all(part)
        except BaseException as err:
            self._cut_short(err)
            raise

    def _send_all(self, data: bytes | bytearray | memoryview) -> None:
        sent = 0
        size = len(data)
        view = data if size < _SMALL else memoryview(data)
        while True:
            try:
                sent += self._sock.send(view)
            except BlockingIOError:  # the peer's buffer is full, or the timeout has passed
                self._wait()
            except OSError as err:
                raise self._gone() from err
            if sent >= size:
                return
            view = memoryview(data)[sent:]

    def receive(self) -> Frame:
        """The next frame of this peer."""
        try:
            while len(self._ahead) < HEAD.size:
                self._ahead += self._receive_some()
            code, count, serial, size = HEAD.unpack_from(self._ahead)
            end = HEAD.size + size
            if end <= len(self._ahead):
                body, self._ahead = self._ahead[HEAD.size : end], self._ahead[end:]
                return Frame(code, serial, split(count, body))
            return Frame(code, serial, split(count, self._receive_body(size)))
        except BaseException as err:
            self._cut_short(err)
            raise

    def _cut_short(self, error: BaseException) -> None:
        # The stream is broken: what comes next would be read as the rest of this frame. A signal
        # handler that raises, or Ctrl-C, ends the group therefore, whatever the code does about it.
        if not isinstance(error, DistributedError):
            kind = type(error).__name__
            self._health.fail(
                f"a call with {self._detector.names[self._peer]} was cut short by {kind}"
            )

    def _receive_some(self) -> bytes:
        looks = _LOOKS
        while True:
            try:
                data = self._sock.recv(_SMALL, socket.MSG_DONTWAIT if looks else 0)
            except BlockingIOError:
                if looks:
                    looks -= 1
                    os.sched_yield()
                else:
                    self._wait()
                continue
            except OSError as err:
                raise self._gone() from err
            if not data:
                raise self._gone()
            return data

    def _receive_body(self, size: int) -> bytearray:
        body = bytearray(size)
        have = len(self._ahead) - HEAD.size
        body[:have] = self._ahead[HEAD.size :]
        self._ahead = b""
        rest = memoryview(body)[have:]
        while rest:
            try:
                count = self._sock.recv_into(rest)
            except BlockingIOError:
                self._wait()
                continue
            except OSError as err:
                raise self._gone() from err
            if not count:
                raise self._gone()
            rest = rest[count:]
        return body

    def _gone(self) -> DistributedError:
        # The end of a connection doesn't show its cause: the peer may have died, left in order, or
        # reported a failure that its control connection still carries. That is waited for first.
        self._detector.explain(self._peer)
        self._health.check()
        return self._health.error(f"{self._name} has left the group: it closed its context")

    def interrupt(self) -> None:
        """Wake a thread that waits on this socket."""
        # Closing would not wake a thread that is in recv(2), and would free the number of a
        # descriptor that it still uses.
        with suppress(OSError):  # it is gone already
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close; the kernel still delivers sent data."""
        self._sock.close()
