"""Which MPI processes of this node have died; MPI itself need not say so.

Most launchers end the whole job when a rank is killed. Where one was told not to, the others
would wait for ever: who is on the dead rank's node sees it, and tells the rest.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Final

_STATE, _START = 0, 19  # fields of /proc/PID/stat behind the name
_OVER: Final = ("Z", "X")


class Neighbours:
    """The other processes of a communicator that run on this node."""

    def __init__(self, comm: Any) -> None:
        # A container may have its own process ids, under the host's name.
        space = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116
        node = (socket.gethostname(), space)
        rows = comm.allgather((node, os.getpid(), started(os.getpid())))
        own = comm.Get_rank()
        self._seen = {
            index: (pid, start)
            for index, (where, pid, start) in enumerate(rows)
            if where == node and index != own
        }

    def dead(self) -> list[int]:
        """The indexes of those that have ended, in peace or not."""
        return [index for index, (pid, start) in self._seen.items() if started(pid) != start]


def started(pid: int) -> str | None:
    """When a process began, as the kernel counts; None once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[_STATE] in _OVER else fields[_START]
