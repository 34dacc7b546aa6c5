"""Run the process that starts the workers, so that it survives a preemption and leaves nothing.

On clusters that track processes without cgroups Slurm's SIGTERM at a preemption reaches every
process of the step. The starter of the workers (torchrun, mpirun) would take it as its end: it runs
with these signals blocked, and the wrapped workers unblock them again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial

from detslurm._base import contract
from detslurm._base.child_processes import (
    become_subreaper,
    descendants,
    die_with_parent,
    signal_each,
)
from detslurm._base.flag import SIGNALS, PreemptFlag
from detslurm._base.process import exit_status
from detslurm.exec.signals import STRAY, SignalInbox
from detslurm.launch import ranks

BLOCKED = frozenset(SIGNALS)

# Under an agent only SIGTERM ends a launcher: the others were sent to the whole step (as by scancel
# --signal), so that the code has had them, too, and may have a use for them.
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# Seconds from the request to exit to the kill.
_GRACE = 5.0
# How often (seconds) the exit log is read where a failure has to be noticed.
_POLL = 1.0


def unblock() -> None:
    """Let this process, a worker's wrapper, have the signals that its launcher blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED | STRAY)


def supervise(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    flag: PreemptFlag | None = None,
    exits: ranks.ExitLog | None = None,
    failure_grace: float | None = None,
) -> int:
    """Run the command to its end and end all that it started; returns the exit status.

    Of failed workers it is that of the first. A `flag` is this node's preemption flag where no
    agent has one: Slurm's signals raise it. `failure_grace`: how long the command may take to end
    after a worker has failed, where it might wait for the others too long by itself. Raises
    `OSError` when the command can't be started.
    """
    # Workers have sessions of their own, and a launcher that is killed does not end them: as
    # orphans they become children of this process, which can then find and end them.
    become_subreaper()
    managed = flag is None and ranks.has_flag()
    ending = _ENDING[:1] if managed else _ENDING
    inbox = SignalInbox([*ending, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD])
    exits = exits or ranks.ExitLog()
    # Blocked in the child, between fork and exec: a blocked signal stays blocked through the exec,
    # while a handler would be reset there, and launchers install handlers of their own for SIGTERM.
    child = subprocess.Popen(
        argv,
        env={**env, contract.EXIT_LOG: exits.name},
        stdin=subprocess.DEVNULL,
        preexec_fn=partial(_in_child, BLOCKED | STRAY if managed else BLOCKED),
    )
    overdue = _Overdue(exits, failure_grace) if failure_grace is not None else None
    ended_by = _watch(child, inbox, flag, overdue)
    end_all()
    if ended_by is not None:
        return 128 + ended_by
    status = exit_status(child.returncode)
    return (exits.first_failure() or status) if status else 0


def _in_child(blocked: frozenset[int]) -> None:
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)


class _Overdue:
    """Whether the command goes on although a worker failed a while ago."""

    def __init__(self, exits: ranks.ExitLog, grace: float) -> None:
        self._exits, self._grace = exits, grace
        self._deadline: float | None = None

    def __bool__(self) -> bool:
        if self._deadline is None and self._exits.first_failure():
            self._deadline = time.monotonic() + self._grace
        return self._deadline is not None and time.monotonic() > self._deadline


def _watch(
    child: subprocess.Popen[bytes],
    inbox: SignalInbox,
    flag: PreemptFlag | None,
    overdue: _Overdue | None,
) -> signal.Signals | None:
    """Wait for the child; the signal that ended it all, if it was ours."""
    # SIGCHLD is in the inbox: an exit between poll() and wait() has left a byte in its pipe.
    while child.poll() is None:
        inbox.wait(None if overdue is None else _POLL)
        if overdue:
            child.kill()
            child.wait()
            return None
        came = inbox.take()
        if flag is not None and came & BLOCKED:
            flag.request_preemption()
        ending = next((sig for sig in _ENDING if sig in came), None)
        if ending is None or (ending is signal.SIGTERM and ranks.is_preemption()):
            continue
        _terminate(child, ending)
        return ending
    return None


def _terminate(child: subprocess.Popen[bytes], sig: signal.Signals) -> None:
    # To all below, not the child alone: the child has these signals blocked and would not pass them
    # on, and the workers' wrappers have unblocked them.
    signal_each(descendants(os.getpid()), sig)
    try:
        child.wait(_GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def end_all() -> None:
    """Kill every process below this process; orphans are its children, so waiting finds all."""
    # With a limit: a process in uninterruptible sleep (a dead file server) can't be killed, and
    # this node has to report its end all the same.
    deadline = time.monotonic() + _GRACE
    while time.monotonic() < deadline:
        signal_each(descendants(os.getpid()), signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.01)  # SIGKILL takes a moment
        except ChildProcessError:
            return
