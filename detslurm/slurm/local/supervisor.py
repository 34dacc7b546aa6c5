"""The supervisor of one running element: no process of the job outlives it, whatever happens.

The supervisor is a child subreaper, so that every process of the job stays below it, also those
whose parents died. It listens to the scheduler on a socket; when that closes, the scheduler is gone
and the job is ended at once, to be requeued by the next scheduler.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

from detslurm._base.child_processes import (
    become_subreaper,
    descendants,
    die_with_parent,
    signal_each,
)

TERM, KILL, NEAR_LIMIT, NOTIFY = b"T", b"K", b"1", b"2"


@dataclass(frozen=True, slots=True)
class Launch:
    """The command to run, and the place of its output."""

    script: Path
    folder: Path
    output: Path
    environment: dict[str, str]


def start(launch: Launch) -> socket.socket:
    """Fork a supervisor for this launch; returns the scheduler's end of the line to it."""
    # A socket pair and not a pipe: one descriptor carries orders down and the result up, and its
    # end shows either side at once that the other process is gone, however it died.
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return ours
    try:
        _become_supervisor(theirs.detach(), launch)
    finally:
        # Whatever was raised: the child must never return into the scheduler's loop, whose journal
        # and clients belong to the parent. Without a result line the parent takes the job for lost.
        os._exit(1)


def _become_supervisor(line: int, launch: Launch) -> None:
    # A session of its own: no signal to the scheduler's terminal or process group reaches it.
    os.setsid()
    # Another supervisor's line kept open here would hide the scheduler's death from it.
    _close_all_but(0, 1, 2, line)
    channel = socket.socket(fileno=line)
    # It ends only after its last child: a signal that ended it earlier would leave processes behind
    # without a waiting parent. SIGKILL can't be ignored: then the scheduler sweeps the rest.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # The wake-up descriptor closes the gap between looking for dead children and poll(): a child
    # that dies in between has written a byte already, so that poll() returns at once. A full pipe
    # is fine: one byte is enough to wake.
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    # Before the job starts: an orphan of the job is given to its nearest subreaper at that moment.
    become_subreaper()
    batch = _start_batch(launch)
    status = _attend(batch, channel, wake_read)
    # The result is sent when nothing of the job runs any more: a successor may start at once.
    _end_all()
    code, ended_by = _decode(status)
    try:
        channel.sendall(json.dumps({"code": code, "signal": ended_by}).encode() + b"\n")
    except OSError:
        pass  # the scheduler is gone
    os._exit(0)


def _start_batch(launch: Launch) -> int:
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        # Ignored signals stay ignored across exec: the batch script shall begin with the defaults.
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.setsid()
        # The supervisor may be killed at any moment; the batch process then dies with it. If that
        # was before the call, the signal was missed, but the parent is another one already.
        die_with_parent()
        if os.getppid() != supervisor:
            os._exit(137)
        _redirect(launch.output)
        with contextlib.suppress(OSError):  # the script waits for it
            os.chdir(launch.folder)
        os.execve("/bin/bash", ["bash", str(launch.script)], launch.environment)
    except BaseException as error:
        os.write(2, f"cannot start the batch script: {error}\n".encode())
    os._exit(127)


def _redirect(output: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(nothing, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    _close_all_but(0, 1, 2)


def _close_all_but(*kept: int) -> None:
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in kept:
            try:
                os.close(int(entry.name))
            except OSError:
                pass  # the listing's own descriptor


def _attend(batch: int, channel: socket.socket, wake: int) -> int:
    """Wait for the batch process, carrying out the scheduler's orders; returns its wait status."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(wake, select.POLLIN)
    while (status := _reap(batch)) is None:
        ready = {fd for fd, _ in poll.poll()}
        if wake in ready:
            os.read(wake, 4096)
        if channel.fileno() in ready:
            orders = channel.recv(4096)
            # End of file: the scheduler died. The next one finds the job running in the journal and
            # requeues it, so what runs now must go. Unregistered, for an end is always readable.
            if not orders:
                poll.unregister(channel)
                orders = KILL
            for order in orders:  # a byte each: several may have been sent meanwhile
                _obey(bytes([order]), batch)
    return status


def _obey(order: bytes, batch: int) -> None:
    if order == NEAR_LIMIT:
        signal_each([batch], signal.SIGUSR1)
    elif order == NOTIFY:
        signal_each([batch], signal.SIGUSR2)
    elif order == TERM:
        # A stopped process would receive SIGTERM only when it is continued.
        signal_each(descendants(os.getpid()), signal.SIGCONT, signal.SIGTERM)
    elif order == KILL:
        signal_each(descendants(os.getpid()), signal.SIGKILL)


def _reap(batch: int) -> int | None:
    """Collect all that ended; the batch process's status once it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found if found is not None else 0
        if pid == batch:
            found = status
        elif pid == 0:
            return found


def _end_all() -> None:
    """Kill what the batch process has left; orphans are our children, so waiting finds all."""
    # A process may fork while the list is made, and its child be missed: each death leads to
    # another round, until the kernel itself reports that there is no child left.
    while True:
        signal_each(descendants(os.getpid()), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _decode(status: int) -> tuple[int | None, int | None]:
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None
