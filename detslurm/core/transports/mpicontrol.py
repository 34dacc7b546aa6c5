"""Words between MPI processes beside the collective calls."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from detslurm.core.transports.health import Health, peer_timeout
from detslurm.core.transports.link import Word
from detslurm.core.transports.order import Call

_WORD = 73  # tag


class MpiControl:
    """Words by MPI messages, taken in whenever this rank waits long."""

    def __init__(self, mpi: Any, comm: Any, health: Health) -> None:
        self.waiting: dict[int, Call] = {}
        self.left: dict[int, int] = {}
        """Who has said goodbye -> in how many calls it took part to the end."""
        self.calls = 0
        self._mpi, self._comm, self._health = mpi, comm, health
        self._thread = threading.get_ident()
        self._unsaid: list[tuple[Word, bytes, int | None]] = []
        self._sent: list[tuple[Any, bytes]] = []
        self._closed = False
        self._dead: Callable[[], Iterable[int]] = tuple
        _open_controls.append(self)

    def tell(self, word: Word, text: bytes = b"", peer: int | None = None) -> None:
        """Say a word; from another thread it is said when this rank next waits or closes."""
        self._unsaid.append((word, text[:1024], peer))
        if threading.get_ident() == self._thread:
            self._say_all()

    def _say_all(self) -> None:
        own = self._comm.Get_rank()
        while self._unsaid:
            word, text, peer = self._unsaid.pop(0)
            message = bytes([word]) + text
            others = [i for i in range(self._comm.Get_size()) if i != own]
            for index in others if peer is None else [peer]:
                request = self._comm.Isend([message, self._mpi.BYTE], index, _WORD)
                self._sent.append((request, message))
        self._sent = [item for item in self._sent if not item[0].Test()]

    def listen(self) -> None:
        """Take in all words that have arrived."""
        self._say_all()
        status = self._mpi.Status()
        while (found := self._comm.Improbe(self._mpi.ANY_SOURCE, _WORD, status)) is not None:
            text = bytearray(status.Get_count(self._mpi.BYTE))
            found.Recv([text, self._mpi.BYTE])
            self._hear(status.Get_source(), text[0], bytes(text[1:]))

    def _hear(self, peer: int, word: int, text: bytes) -> None:
        if word == Word.BYE:
            self.left[peer] = int(text)
        elif word == Word.ABORT:
            self._health.fail(text.decode(errors="replace"))
        elif word == Word.WAITING:
            self.waiting[peer] = Call.unpack(text)

    def give_up(self, dead: Callable[[], Iterable[int]]) -> None:
        """A rank has died: this process can't leave MPI in order any more. `dead` tells who."""
        self._dead = dead
        _broken.append(self)

    def is_over(self) -> bool:
        """Whether MPI has been left already."""
        return bool(self._mpi.Is_finalized())

    def wait_for_the_living(self) -> None:
        """Let the others leave, too, for they may still be saving what can be saved."""
        others = set(range(self._comm.Get_size())) - {self._comm.Get_rank()}
        deadline = time.monotonic() + peer_timeout()
        while others - self.left.keys() - set(self._dead()) and time.monotonic() < deadline:
            try:
                self.listen()
            except self._mpi.Exception:  # there could be a word of the dead; then of the others
                self._comm.Ack_failed()
            time.sleep(0.01)  # MPI has nothing to wait on

    def abort(self) -> None:
        """End the whole MPI job."""
        self._mpi.COMM_WORLD.Abort(1)

    def close(self) -> None:
        """Say goodbye to all."""
        if not self._closed:
            self._closed = True
            _open_controls.remove(self)
            self.tell(Word.BYE, b"%d" % self.calls)
            self._say_all()


_open_controls: list[MpiControl] = []
_broken: list[MpiControl] = []


def say_goodbye() -> None:
    """At exit, before mpi4py's own handler, in which MPI_Finalize waits for all ranks."""
    for control in list(_open_controls):
        control.close()
    if _broken and not _broken[0].is_over():  # MPI_Finalize would wait for the dead
        _broken[0].wait_for_the_living()
        sys.stdout.flush()
        sys.stderr.flush()
        _broken[0].abort()
