"""A launcher's stand-in for an srun that is started outside of the launcher's own step.

The runner does so, or where there is none the launcher's own detached server.

The step writes to this process's outputs, ends when it ends, and gives it its exit status.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence

from detslurm._base import contract
from detslurm._base.identity import is_ours
from detslurm.exec.signals import SignalInbox, discard_signals, exit_with
from detslurm.launch import ranks
from detslurm.launch.supervision import unblock


def main(argv: Sequence[str]) -> int:
    """Have the command run beside this step; returns its exit status."""
    discard_signals()
    inbox = SignalInbox([signal.SIGTERM])
    unblock()
    ranks.check_flag()
    runner = socket.socket(socket.AF_UNIX)
    try:
        runner.connect(f"\0{os.environ[contract.STEP_SERVER]}")
    except OSError:
        # The batch script runs on another machine than the first node: better here than nowhere.
        os.execvp(argv[0], list(argv))
    if not is_ours(runner):
        raise SystemExit("detslurm: the runner of this job is another user's process")
    socket.send_fds(runner, [b"S"], [1, 2])
    runner.sendall(json.dumps({"argv": list(argv), "env": dict(os.environ)}).encode() + b"\n")
    while True:
        ready, _, _ = select.select([runner.fileno(), inbox.fileno()], [], [])
        # The end of the connection without a status: the runner has died, or was killed.
        if runner.fileno() in ready:
            return int(runner.recv(16) or 128 + signal.SIGKILL)
        # Slurm's own SIGTERM at a preemption is not for the step: its ranks get theirs and save.
        # Any other one ends this process, and the runner ends the step when the connection closes.
        if signal.SIGTERM in inbox.take() and not ranks.is_preemption():
            return 128 + signal.SIGTERM


if __name__ == "__main__":
    exit_with(main(sys.argv[1:]))
