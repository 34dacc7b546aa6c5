"""Start the user's command so that none of its processes can outlive the agent's say."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1

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


def members(session: int) -> list[int]:
    """The living processes of a session (zombies don't count)."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_bytes()
        except OSError:
            continue
        state, _, _, sid = stat[stat.rindex(b")") + 2 :].split(b" ")[:4]
        if int(sid) == session and state not in b"ZX":
            found.append(int(entry.name))
    return found


def signal_session(session: int, sig: signal.Signals) -> bool:
    """Send a signal to every process of a session; False when nobody is left."""
    pids = members(session)
    for pid in pids:
        try:
            os.kill(pid, sig)
        except ProcessLookupError:
            pass
    return bool(pids)


def exit_status(returncode: int) -> int:
    """Python's return code as a shell's exit status: 128 + N for death by signal N."""
    return 128 - returncode if returncode < 0 else returncode
