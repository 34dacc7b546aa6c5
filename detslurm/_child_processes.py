"""Start the user's command so that none of its processes can outlive the agent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Loaded before any fork: between fork and exec nothing may be imported.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, however that dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    """Run a command in a session of its own, both outputs in one pipe, in their true order.

    Raises `OSError` when the command can't be executed.
    """
    return subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def signal_each(pids: Sequence[int], *signals: signal.Signals) -> None:
    """Send the signals to every process that is still there."""
    # The pid comes from a moment ago and could be another process's by now. The kernel hands pids
    # out in turn, so that this needs a whole round of all pids within milliseconds.
    for pid in pids:
        try:
            for sig in signals:
                os.kill(pid, sig)
        except (ProcessLookupError, PermissionError):
            pass


def catching(pids: Iterable[int], sig: signal.Signals) -> list[int]:
    """Those that have a handler for a signal, so that it does not end them."""
    return [pid for pid in pids if _caught(pid) >> (sig - 1) & 1]


def _caught(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)


def in_cgroup_of_step() -> bool:
    """Whether Slurm tracks this step by cgroups: its signals then reach the step's tasks alone."""
    try:
        return "/step_" in Path("/proc/self/cgroup").read_text()
    except OSError:
        return False


def become_subreaper() -> None:
    """Adopt the orphans among this process's descendants, so that none gets out of sight."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(root: int) -> list[int]:
    """The living processes below `root` (zombies don't count), parents before children."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    # Not atomic: processes fork and end while /proc is read, so callers repeat until nothing is
    # left.
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def pids() -> list[int]:
    """All processes that are visible here."""
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def _parents() -> Iterator[tuple[int, int]]:
    for pid in pids():
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            continue
        state, parent = stat[stat.rindex(b")") + 2 :].split(b" ")[:2]  # the name may hold anything
        if state not in b"ZX":
            yield pid, int(parent)
