"""One MPI rank that srun has started: takes its own node's environment and runs the command."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from detslurm._base import contract
from detslurm._base.identity import is_ours
from detslurm.exec.signals import exit_with
from detslurm.launch.rank_server import address
from detslurm.launch.wrap_rank import main as wrap
from detslurm.slurm.hostlist import counts_by_node

# Variables that srun and MPI's start-up set for this rank alone.
_OWN = ("SLURM_", "PMIX_", "PMI_", "OMPI_")

PATIENCE = 120.0
"""How long a rank waits for the launcher of its node, in seconds."""


def main(argv: Sequence[str]) -> int:
    """Run the command as this rank; returns its exit status."""
    server = connected(address(os.environ, int(os.environ["SLURM_NODEID"])))
    if not is_ours(server):
        raise SystemExit("detslurm: the launcher of this node is another user's process")
    _tell_count(server, os.environ)
    answer = json.loads(server.makefile().readline())
    own = {name: value for name, value in os.environ.items() if name.startswith(_OWN)}
    os.environ.clear()
    os.environ.update({k: v for k, v in answer["env"].items() if not k.startswith(_OWN)} | own)
    os.chdir(answer["cwd"])
    threading.Thread(target=_die_with, args=(server,), daemon=True).start()
    # Each rank has a container of its own, where the launcher has one.
    container = json.loads(os.environ.get(contract.CONTAINER, "[]"))[1:]
    return wrap(["SLURM_PROCID", "--", *container, *argv], is_task=True)


def connected(name: str) -> socket.socket:
    """A connection to the launcher of this node.

    The first node's launcher starts all ranks as soon as it is ready itself: a rank waits for that
    of its own node, which may still read its modules. Should that have failed instead, its agent
    informs the runner, which ends this rank, too.
    """
    until = time.monotonic() + PATIENCE
    pause = 0.02
    while True:
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(name)
        except OSError as err:
            server.close()
            if not isinstance(err, ConnectionRefusedError) or time.monotonic() > until:
                raise SystemExit(
                    f"detslurm: this rank can't reach the launcher of its node ({err.strerror}):"
                    " that has ended, or a container has a network namespace of its own"
                ) from None
            time.sleep(pause)  # a name that no process has is nothing to wait on
            pause = min(2 * pause, 1)
        else:
            return server


def _tell_count(server: socket.socket, environ: Mapping[str, str]) -> None:
    """Send the number of this node's ranks; a launcher that is gone does not answer."""
    counts = counts_by_node(environ["SLURM_STEP_TASKS_PER_NODE"])
    with contextlib.suppress(ConnectionError):
        server.sendall(b"%d" % counts[int(environ["SLURM_NODEID"])])


def _die_with(server: socket.socket) -> None:
    # Nothing is ever sent here: the call returns when the launcher has died, with an error where
    # that left something unread. Then this rank's exit status is lost, and MPI may wait for
    # its peers without end. By os._exit(), because sys.exit() ends a thread alone; the command dies
    # with its parent.
    with contextlib.suppress(OSError):
        server.recv(1)
    os._exit(137)


if __name__ == "__main__":
    exit_with(main(sys.argv[1:]))
