"""Gather and broadcast between a root and its workers, over any kind of links."""

from __future__ import annotations

from detslurm.core.transports.health import Health
from detslurm.core.transports.link import Membership, Parts, Word
from detslurm.core.transports.order import Ledger, disagreement


class Star:
    """One rank's place in a star: index 0 is the root."""

    def __init__(
        self, index: int, names: list[str], membership: Membership, ledger: Ledger, health: Health
    ) -> None:
        self.index = index
        self.names = names
        self._links = membership.links
        self._workers = [membership.links[i] for i in sorted(membership.links)]
        self._control = membership.control
        self._ledger = ledger
        self._health = health
        membership.on_wait.append(self._wait)
        health.lookers.append(self._look)
        health.on_failure(self._spread)

    def gather(self, parts: Parts) -> list[Parts] | None:
        """The root gets everybody's parts by index, its own first; workers get None at once."""
        ledger = self._ledger
        if self.index:
            self._links[0].send(ledger.code, ledger.serial, parts)
            return None
        return [parts, *(self._expect(peer) for peer in range(1, len(self.names)))]

    def allgather(self, parts: Parts) -> Parts:
        """Everybody gets everybody's parts by index."""
        found = self.gather(parts)
        return self.broadcast(None if found is None else [p for some in found for p in some])

    def broadcast(self, parts: Parts | None) -> Parts:
        """Everybody gets the root's parts."""
        if self.index:
            return self._expect(0)
        assert parts is not None
        for link in self._workers:
            link.send(self._ledger.code, self._ledger.serial, parts)
        return parts

    def close(self) -> None:
        """Leave in peace."""
        self._control.close()
        for link in self._workers:
            link.close()

    def _expect(self, peer: int) -> Parts:
        code, serial, parts = self._links[peer].receive()
        if code != self._ledger.code or serial != self._ledger.serial:
            theirs = (self.names[peer], code, serial)
            mine = (self.names[self.index], self._ledger.code, self._ledger.serial)
            raise self._health.error(disagreement(theirs, mine))
        return parts

    def _wait(self) -> None:
        if self.index:
            self._control.tell(Word.WAITING, self._ledger.call.pack(), peer=0)
        self._health.look(self._ledger)

    def _look(self, ledger: Ledger) -> None:
        self._health.check()
        if wrong := ledger.never_met(self._control.waiting, self.names, self.index):
            raise self._health.error(wrong)

    def _spread(self, reason: str) -> None:
        self._control.tell(Word.ABORT, reason.encode())
        for link in self._workers:
            link.interrupt()
