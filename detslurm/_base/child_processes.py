"""Start child processes, find all that descend from them, and leave none behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Loaded before any fork: the import lock may be held by a thread that does not exist in the child,
# so that an import between fork and exec could wait without end.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, however that dies."""
    # The death of the parent's thread counts: start children from a thread that lives as
    # long as they may. The setting survives an exec (but of a set-user-ID program), and no fork.
    # A parent that dies before this call is not noticed: the next agent on the node ends the child.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_parent_alone() -> None:
    """Let no other signal end this process than its parent's death, or its own timer's.

    For a helper whose answer only its parent reads: Slurm signals all processes of a step.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGPROF})
    die_with_parent()


def start(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    blocked: Collection[signal.Signals] = (),
) -> subprocess.Popen[bytes]:
    """Run a command in a session of its own, both outputs in one pipe, in their true order.

    The command begins with the signals `blocked`, and all that it starts inherits that.
    Raises `OSError` when the command can't be executed.
    """

    def in_child() -> None:
        die_with_parent()
        if blocked:
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)

    return subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # No terminal and no process group in common: what the code does to its group or session
        # does not reach the agent.
        start_new_session=True,
        preexec_fn=in_child,
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
            pass  # it has ended since it was listed, or runs as another user (sudo, containers)


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
    """Adopt the orphans among this process's descendants, so that all remain descendants."""
    # A daemon that forks twice would become a child of init, where no search from here finds it.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap() -> None:
    """Let go of all children that have ended: of adopted orphans no one else reads the status."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def descendants(root: int) -> list[int]:
    """The living processes below `root` (zombies don't count), parents before children."""
    children: dict[int, list[int]] = {}
    # Not a snapshot: processes come and go while /proc is read. A child that is forked meanwhile
    # may be missed, so callers that mean to end all repeat this until nothing is found.
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def has_child_beside(known: Collection[int]) -> bool:
    """Whether this process has a child beside those, dead or alive; True where that is unknown.

    If a subreaper has none, no process is left of what the others have started and waited for.
    """
    # The kernel may leave out a child while another is waited for. No other thread waits.
    try:
        tasks = [entry.name for entry in os.scandir("/proc/self/task")]
    except OSError:
        return True
    children = [read_proc(f"self/task/{task}/children") for task in tasks]
    found = [b"?" if listed is None else listed for listed in children]
    return not {b"%d" % pid for pid in known}.issuperset(b" ".join(found).split())


def pids() -> list[int]:
    """All processes that are visible here."""
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def environ_of(pid: int) -> list[bytes]:
    """A process's first environment, as `NAME=value`; empty if it is another user's, or gone."""
    data = read_proc(f"{pid}/environ")
    return data.split(b"\0") if data else []


def read_proc(name: str) -> bytes | None:
    """A file of /proc; None where it can't be read."""
    data = []
    try:
        # Without Python's file objects: these files are read for every process of the node.
        fd = os.open(f"/proc/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while chunk := os.read(fd, 1 << 16):
                data.append(chunk)
        finally:
            os.close(fd)
    except OSError:
        return None
    return b"".join(data)


def _parents() -> Iterator[tuple[int, int]]:
    for pid in pids():
        if (stat := read_proc(f"{pid}/stat")) is None:
            continue  # it has ended since
        state, parent = stat[stat.rindex(b")") + 2 :].split(b" ")[:2]  # the name may hold anything
        if state not in b"ZX":
            yield pid, int(parent)
