"""Where the MPI ranks of a node report: they get this node's environment, and are looked after.

Another step's srun starts them, with the environment of the first node. A local socket without a
name on disk joins each to the launcher of its own node; when either side dies, the other sees it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

from detslurm._base import contract
from detslurm._base.flag import PreemptFlag
from detslurm._base.identity import is_ours, name_on_node
from detslurm.exec.signals import SignalInbox
from detslurm.launch import ranks
from detslurm.launch.supervision import BLOCKED


class RankServer:
    """Serves the ranks of one node until all have come and gone.

    `count` holds until a rank sends the real number: the user's own arguments may have srun start
    more or fewer.
    """

    def __init__(self, node: int, env: Mapping[str, str], count: int) -> None:
        self._answer = json.dumps({"env": dict(env), "cwd": str(Path.cwd())}).encode() + b"\n"
        self._count = count
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(address(env, node))
        self._server.listen(count)
        # The serving thread closes one end when the last rank has gone: the other end turns
        # readable, which select() can wait for together with signals.
        self._all_gone, self._close_when_gone = os.pipe()
        self._inbox = SignalInbox([*BLOCKED])

    def start(self) -> None:
        """Serve from now on, beside whatever else this process does."""
        threading.Thread(target=self._serve, daemon=True).start()

    def wait(self, flag: PreemptFlag | None) -> signal.Signals | None:
        """Wait for the last rank's end; the signal that ended it all, if one did."""
        while True:
            ready, _, _ = select.select([self._all_gone, self._inbox.fileno()], [], [])
            if self._all_gone in ready:
                return None
            came = self._inbox.take()
            # Only in a job of the user's own: in a managed one the agent has raised the flag.
            if flag is not None and came:
                flag.request_preemption()
            # Slurm's SIGTERM at a preemption asks the ranks to save; any other one ends this node.
            if signal.SIGTERM in came and not ranks.is_preemption():
                return signal.SIGTERM

    def _serve(self) -> None:
        # A rank that dies, however it dies, closes its socket: no message is needed for that, and
        # none can get lost. Ranks see the death of this process in the same way. A rank that dies
        # before it has read its answer shows as an error here, which must not end this thread: the
        # other ranks would wait for theirs, and no process would see the end of the last rank.
        present: list[socket.socket] = []
        gone = 0
        while gone < self._count:
            ready, _, _ = select.select([self._server, *present], [], [])
            for one in ready:
                if one is self._server:
                    rank, _ = self._server.accept()
                    if is_ours(rank):
                        present.append(rank)
                        with contextlib.suppress(ConnectionError):
                            rank.sendall(self._answer)
                    else:
                        rank.close()
                elif said := _received(one):
                    self._count = int(said)
                else:
                    present.remove(one)
                    one.close()
                    gone += 1
        os.close(self._close_when_gone)


def _received(rank: socket.socket) -> bytes:
    """A rank's message; empty once it has gone."""
    try:
        return rank.recv(64)
    except ConnectionError:
        return b""


def address(env: Mapping[str, str], node: int) -> str:
    """The abstract name of a node's server: unique by user, run and node."""
    run = f"{env[contract.MASTER]} {env[contract.ALLOCATION_ID]}"
    return name_on_node(env, f"rank server of node {node} for {run}")
