"""A thread that learns of a peer's death or orderly leave while the rank computes or waits."""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
from contextlib import suppress
from typing import Final

from detslurm.core.transports.call_sequence import Call
from detslurm.core.transports.health import CHECK_INTERVAL, Health
from detslurm.core.transports.link import LONGEST_TEXT, ControlMessage

_HEAD = struct.Struct("<BI")
_LONGEST: Final = 1 << 16
_CHECKS: Final = 200  # ten seconds: a dying process may lose its core between two connections


class FailureDetector:
    """The control connections of a rank in a communicator. It sleeps until any is ready."""

    def __init__(self, sockets: dict[int, socket.socket], names: list[str], health: Health) -> None:
        self.names = names
        self.waiting: dict[int, Call] = {}
        self._sockets = sockets
        self._health = health
        self._received = dict.fromkeys(sockets, b"")
        self._gone = {peer: threading.Event() for peer in sockets}
        self._lock = threading.Lock()  # messages of two threads must not mix on one connection
        # The only way to end a select() of another thread is an event: `close` makes one on this
        # pair.
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        for peer, sock in sockets.items():
            self._selector.register(sock, selectors.EVENT_READ, peer)
        # A daemon: a script that forgets to close its context must still be able to end. Its
        # process's end closes the connections, which peers then take for a death, for no BYE was
        # sent.
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="detslurm-peers", daemon=True)
        self._thread.start()

    def send(self, kind: ControlMessage, text: bytes = b"", peer: int | None = None) -> None:
        """Send a message to one peer or to all; a peer that can't receive now isn't waited for."""
        text = text[:LONGEST_TEXT]
        message = _HEAD.pack(kind, len(text)) + text
        with self._lock:
            for number, sock in self._sockets.items():
                if peer is None or number == peer:
                    # Never blocks: a stopped peer with a full buffer must not hold up the report of
                    # a failure to the others.
                    with suppress(OSError):  # its end will be seen by the thread
                        sock.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def explain(self, peer: int) -> None:
        """Wait until the thread knows why the peer's connection has ended: soon, as a rule."""
        # Both connections of a peer end at its death, in no particular order: a thread that sees
        # the data connection end first waits here for the control connection's BYE, ABORT or end.
        for _ in range(_CHECKS):
            if self._health.failure is not None or self._gone[peer].wait(CHECK_INTERVAL / 10):
                return

    def close(self) -> None:
        """Take leave of all peers and stop the thread."""
        # In a forked child neither the thread exists nor are the peers the child's to take leave
        # of.
        if os.getpid() != self._owner:
            return
        self.send(ControlMessage.BYE)
        self._wake_out.shutdown(socket.SHUT_WR)  # closing isn't enough: forked loaders hold it, too
        self._wake_out.close()
        # A failure hook may run in the thread itself, which can't wait for its own end. The sockets
        # are closed after its end: a number that is free again may become another file's meanwhile.
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._selector.close()
        self._wake_in.close()
        for sock in self._sockets.values():
            sock.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                self._read(key.data, self._sockets[key.data])

    def _read(self, peer: int, sock: socket.socket) -> None:
        try:
            data = sock.recv(_LONGEST)
        except OSError as err:  # reset, or no answer to keep-alive probes: its host is gone
            self._lost(peer, sock, err.strerror or str(err))
            return
        if not data:
            self._lost(peer, sock, "its connection closed")
            return
        received = self._received[peer] + data
        # TCP keeps the order, not the bounds of messages: they may come in parts, or several at
        # once.
        while len(received) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(received)
            if len(received) < _HEAD.size + size:
                break
            text, received = received[_HEAD.size : _HEAD.size + size], received[_HEAD.size + size :]
            self._handle(peer, kind, text)
        self._received[peer] = received

    def _handle(self, peer: int, kind: int, text: bytes) -> None:
        if kind == ControlMessage.BYE:
            self._gone[peer].set()
        elif kind == ControlMessage.ABORT:
            self._health.fail(text.decode(errors="replace"))  # it may be cut in mid-character
        elif kind == ControlMessage.WAITING:
            self.waiting[peer] = Call.unpack(text)

    def _lost(self, peer: int, sock: socket.socket, why: str) -> None:
        # Unregistered, or select() would report the end again and again, in a busy loop.
        self._selector.unregister(sock)
        # After BYE the end is in order. The failure is set before the event: a thread in `explain`
        # must find the reason when it wakes.
        if not self._gone[peer].is_set():
            self._health.fail(f"{self.names[peer]} died: {why}")
            self._gone[peer].set()
