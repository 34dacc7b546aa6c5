"""Finding and ending processes: descendants of a supervisor, and strays by their environment."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

from detslurm import _env

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """prctl(2); the two options used here exist on every kernel that Slurm runs on."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Every process below root, parents before children."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        parent = _parent(pid)
        if parent is not None:
            children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def send(pids: list[int], *signals: signal.Signals) -> None:
    """Each signal to each process that still exists and is ours."""
    for pid in pids:
        for number in signals:
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                break


def strays(tag: str, job: str = "", index: str = "") -> list[int]:
    """Processes of this user whose environment names this local cluster (and this element)."""
    marks = {f"{_env.LOCAL_TAG}={tag}".encode()}
    if job:
        marks |= {
            f"{_env.LOCAL_JOB_ID}={job}".encode(),
            f"{_env.LOCAL_TASK_ID}={index}".encode(),
        }
    found = []
    for pid in _pids():
        if pid == os.getpid():
            continue
        try:
            if marks <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                found.append(pid)
        except OSError:  # another user's, or gone
            continue
    return found


def sweep(tag: str, ref: str = "", *, patience: float = 10.0) -> None:
    """Kill what a lost scheduler's jobs, or one lost element, have left behind."""
    job, _, index = ref.partition("_")
    deadline = time.monotonic() + patience
    while (left := [pid for pid in strays(tag, job, index) if not _zombie(pid)]) and (
        time.monotonic() < deadline
    ):
        send(left, signal.SIGKILL)
        time.sleep(0.02)  # death takes a moment and sends no word to somebody who is no parent


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name before it may hold anything


def _parent(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[1]) if len(fields) > 1 else None


def _zombie(pid: int) -> bool:
    fields = _stat(pid)
    return not fields or fields[0] == "Z"
