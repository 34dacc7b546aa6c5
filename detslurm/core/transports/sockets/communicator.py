"""Gather and broadcast between a root and its workers, over sockets."""

from __future__ import annotations

from collections.abc import Mapping

from detslurm.core.transports.call_sequence import CallSequence, disagreement
from detslurm.core.transports.health import Health
from detslurm.core.transports.link import ControlMessage, Parts
from detslurm.core.transports.sockets.acceptor import ConnectionPair
from detslurm.core.transports.sockets.failure_detector import FailureDetector
from detslurm.core.transports.sockets.link import SocketLink


class SocketCommunicator:
    """Collective calls over links to the root (index 0), or from it to all workers."""

    def __init__(
        self,
        index: int,
        names: list[str],
        pairs: Mapping[int, ConnectionPair],
        sequence: CallSequence,
        health: Health,
    ) -> None:
        self.index = index
        self.names = names
        controls = {peer: pair.control for peer, pair in pairs.items()}
        self._control = FailureDetector(controls, names, health)
        # Whenever one of the rank's links waits long, all its communicators are checked: a peer
        # that has died in the other communicator is why this link is silent.
        self._links = {
            peer: SocketLink(pair.data, peer, self._control, health, self._wait)
            for peer, pair in pairs.items()
        }
        self._workers = [self._links[i] for i in sorted(self._links)]
        self._sequence = sequence
        self._health = health
        health.checks.append(self._check_peers)
        health.on_failure(self._broadcast_failure)

    def gather(self, parts: Parts) -> list[Parts] | None:
        """The root gets everybody's parts by index, its own first; workers get None at once."""
        sequence = self._sequence
        if self.index:
            self._links[0].send(sequence.code, sequence.serial, parts)
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
            link.send(self._sequence.code, self._sequence.serial, parts)
        return parts

    def close(self) -> None:
        """Leave in order."""
        # First, so that peers read BYE before they see the data connections end.
        self._control.close()
        for link in self._workers:
            link.close()

    def _expect(self, peer: int) -> Parts:
        code, serial, parts = self._links[peer].receive()
        # Each link is in order, so that another call than ours is a mistake of the user's code: a
        # rank has left out a call, or made one more.
        if code != self._sequence.code or serial != self._sequence.serial:
            theirs = (self.names[peer], code, serial)
            mine = (self.names[self.index], self._sequence.code, self._sequence.serial)
            raise self._health.error(disagreement(theirs, mine))
        return parts

    def _wait(self) -> None:
        # Workers report what they wait in, the root compares: it is at the end of all links.
        if self.index:
            self._control.send(ControlMessage.WAITING, self._sequence.call.pack(), peer=0)
        self._health.run_checks(self._sequence)

    def _check_peers(self, sequence: CallSequence) -> None:
        self._health.check()
        if wrong := sequence.find_deadlock(self._control.waiting, self.names, self.index):
            raise self._health.error(wrong)

    def _broadcast_failure(self, reason: str) -> None:
        # The reason goes by the control connections, whose threads read them at once; only then are
        # this rank's own threads woken, whose errors close connections.
        self._control.send(ControlMessage.ABORT, reason.encode(errors="replace"))
        for link in self._workers:
            link.interrupt()
