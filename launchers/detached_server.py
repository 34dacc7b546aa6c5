"""A server of steps outside of the launcher's own step, for a batch script without a runner.

Slurm signals a step's processes at a preemption; without cgroups, these are all that descend from
its slurmstepd. An srun among them takes the signal as the order to kill its ranks. So what starts
it is an orphan, which descends from nothing but the node's first process. It ends when the
launcher has ended, however that came.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from detslurm.exec.step_server import StepServer


def start(name: str) -> subprocess.Popen[bytes]:
    """Start the server; it lives as long as this process holds the returned object.

    Raises `RuntimeError` when it did not come up.
    """
    command = [sys.executable, "-m", "detslurm.launch.detached_server", name]
    # Its standard input is the pipe whose end it sees when this process is gone.
    parent = subprocess.Popen(command, stdin=subprocess.PIPE)
    # An orphan is adopted by the nearest process that has asked for it, as a launcher does later
    # on: the parent has to be gone before.
    if parent.wait():
        raise RuntimeError("the process that starts the ranks' step has failed")
    return parent


def main(argv: Sequence[str]) -> int:
    """Serve in a child of this process until standard input ends; return when it does serve."""
    ready, report = os.pipe()
    if os.fork():
        os.close(report)
        return 0 if os.read(ready, 1) else 1
    os.setsid()  # where process groups or sessions are tracked it leaves those, too
    server = StepServer(f"\0{argv[0]}")
    os.write(report, b"1")
    os.close(report)
    os.read(0, 1)  # nothing is ever written: the end
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
