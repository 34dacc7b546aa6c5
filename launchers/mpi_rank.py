"""One MPI rank that srun has started: takes its own node's environment and runs the command."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Sequence

from detslurm.exec.stepdesk import is_ours
from detslurm.launch.nodedesk import address
from detslurm.launch.wrap_rank import main as wrap

# What srun and MPI's start-up say to this rank alone.
_OWN = ("SLURM_", "PMIX_", "PMI_", "OMPI_")


def main(argv: Sequence[str]) -> int:
    """Run the command as this rank; returns its exit status."""
    desk = socket.socket(socket.AF_UNIX)
    try:
        desk.connect(address(os.environ, int(os.environ["SLURM_NODEID"])))
    except OSError as err:
        raise SystemExit(
            f"detslurm: this rank can't reach the launcher of its node ({err.strerror}): that has"
            " ended, or a container has a network namespace of its own"
        ) from None
    if not is_ours(desk):
        raise SystemExit("detslurm: the launcher of this node is another user's process")
    word = json.loads(desk.makefile().readline())
    own = {name: value for name, value in os.environ.items() if name.startswith(_OWN)}
    os.environ.clear()
    os.environ.update({k: v for k, v in word["env"].items() if not k.startswith(_OWN)} | own)
    os.chdir(word["cwd"])
    threading.Thread(target=_die_with, args=(desk,), daemon=True).start()
    return wrap(["SLURM_PROCID", "--", *argv], is_task=True)


def _die_with(desk: socket.socket) -> None:
    desk.recv(1)
    os._exit(137)  # and the command with us


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
