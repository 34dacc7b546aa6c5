"""Run one worker so that its lines in the log show its rank.

    python3 -m detslurm.launch.wrap_rank [--no-redirect-stdio] RANK|ENV,ENV... [--] CMD [ARGS...]

RANK is a number, or names of environment variables of which the first that is set holds it. Every
line of CMD's output gets the prefix `[rank=RANK] `; of one that is rewritten (a carriage return),
such as a progress bar, one state a second. They go to this process's own outputs, with or without
--no-redirect-stdio, which changes nothing here. Signals are passed on, the exit status is CMD's,
and CMD never outlives this process.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

from detslurm._base import contract
from detslurm._base.child_processes import (
    catching,
    descendants,
    die_with_parent,
    in_cgroup_of_step,
    signal_each,
)
from detslurm._base.process import exit_status
from detslurm.exec.line_splitter import LONGEST, LineSplitter
from detslurm.exec.signals import SignalInbox, discard_signals, exit_with
from detslurm.launch import ranks
from detslurm.launch.supervision import unblock

USAGE = "usage: wrap_rank [--no-redirect-stdio] RANK|ENV,ENV... [--] CMD [ARGS...]"

_PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
# The command's own children may still print once it has ended, when they keep its output open.
_STRAGGLERS = 2.0
# With the prefix a line must still be a whole line to the node agent.
_LONGEST = LONGEST - 64


def main(argv: Sequence[str], *, is_task: bool = False) -> int:
    """Run the command; returns its exit status.

    `is_task`: srun has started this process; with cgroups Slurm signals it, and not the command.
    """
    args = list(argv)
    if args[:1] and args[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    if args[:1] == ["--no-redirect-stdio"]:
        del args[0]
    command = args[2:] if args[1:2] == ["--"] else args[1:]
    if not command:
        print(USAGE, file=sys.stderr)
        return 1
    os.environ.update(json.loads(os.environ.pop(contract.PUT_BACK, "{}")))
    rank = rank_of(args[0], os.environ)
    if rank is None:
        print(f"wrap_rank: none of {args[0]} is set to a rank", file=sys.stderr)
        return 1
    try:
        ranks.check_flag()
    except RuntimeError as err:
        print(f"wrap_rank: {err}", file=sys.stderr)
        return 1
    # Signals that came while they were blocked are delivered by unblock(): most are discarded, and
    # SIGTERM ends this process, which is right: the command has not begun, so nothing is lost.
    die_with_parent()
    if ranks.has_flag():
        discard_signals()
    unblock()
    status = Wrapped(rank, command, alone=is_task and in_cgroup_of_step()).run()
    ranks.report_exit(rank, status)
    return status


def rank_of(given: str, env: Mapping[str, str]) -> int | None:
    """The rank that a number or a comma-separated list of variables gives."""
    candidates = [given] if given.isdigit() else [env.get(name, "") for name in given.split(",")]
    return next((int(value) for value in candidates if value.isdigit()), None)


class Wrapped:
    """One worker and the pipes that it writes to."""

    def __init__(self, rank: int, command: Sequence[str], *, alone: bool = False) -> None:
        self._alone = alone
        self._prefix = b"[rank=%d] " % rank
        # Before the fork: a signal that comes in between must not end this process while the
        # command lives on. The command's exec resets the handlers to the default actions.
        self._inbox = SignalInbox([*_PASSED_ON, signal.SIGCHLD])
        pipe = subprocess.PIPE
        # Popen returns after the exec: no signal is passed on between the fork and the exec,
        # where Python's handler would still take it, and the exec forget it.
        try:
            self._child = subprocess.Popen(
                command, stdout=pipe, stderr=pipe, preexec_fn=die_with_parent
            )
        except OSError as err:
            print(f"wrap_rank: can't start {command[0]}: {err.strerror}", file=sys.stderr)
            raise SystemExit(127 if isinstance(err, FileNotFoundError) else 126) from None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._inbox.fileno(), selectors.EVENT_READ)
        self._streams: dict[int, tuple[LineSplitter, int]] = {}
        for pipe_end, ours in ((self._child.stdout, 1), (self._child.stderr, 2)):
            assert pipe_end is not None
            self._streams[pipe_end.fileno()] = (LineSplitter(_LONGEST), ours)
            self._selector.register(pipe_end.fileno(), selectors.EVENT_READ)

    def run(self) -> int:
        """Pass lines and signals on until the command is over."""
        ended_at: float | None = None
        while True:
            # Its own children may keep the pipes open after its end, even for good (a daemon):
            # their output is passed on for a moment, then not waited for.
            if ended_at is None and self._child.poll() is not None:
                ended_at = time.monotonic()
            # An exit between that poll and select() is not slept through: SIGCHLD is in the inbox.
            if ended_at and (not self._streams or time.monotonic() > ended_at + _STRAGGLERS):
                break
            for key, _ in self._selector.select(self._select_timeout(ended_at is not None)):
                if key.fd == self._inbox.fileno():
                    self._on_signals()
                else:
                    self._read(key.fd)
            for splitter, ours in self._streams.values():
                self._write(ours, splitter.overdue())
        for splitter, ours in self._streams.values():
            self._write(ours, splitter.close())
        return exit_status(self._child.returncode)

    def _select_timeout(self, ended: bool) -> float | None:
        waiting = ended or any(splitter.has_pending() for splitter, _ in self._streams.values())
        return 0.2 if waiting else None

    def _on_signals(self) -> None:
        # Passed on only where the command has not had it: a second SIGTERM would look to the code
        # like the order to exit at once, in the middle of saving.
        for sig in self._inbox.take() - {signal.SIGCHLD}:
            if not _has_come_to_all(sig):
                # After the command's end this does nothing: Popen knows that it has reaped the pid,
                # which may be another process's by now.
                self._child.send_signal(sig)
            elif sig is signal.SIGUSR1 and self._alone:
                below = [self._child.pid, *descendants(self._child.pid)]
                signal_each(catching(below, sig), sig)

    def _read(self, fd: int) -> None:
        splitter, ours = self._streams[fd]
        chunk = os.read(fd, 65536)
        self._write(ours, splitter.feed(chunk) if chunk else splitter.close())
        if not chunk:
            self._selector.unregister(fd)
            del self._streams[fd]

    def _write(self, fd: int, lines: Iterable[bytes]) -> None:
        # In one write, which the kernel keeps together up to 4 KiB: all workers of a node have one
        # pipe. Without a reader this blocks and signals wait; the code itself looks at the flag.
        data = b"".join(self._prefix + line + b"\n" for line in lines)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]


def _has_come_to_all(sig: signal.Signals) -> bool:
    """Whether the command has had the signal, too: at a preemption, and to dump its stacks."""
    if sig is signal.SIGUSR1:
        return ranks.has_flag()
    return sig is signal.SIGTERM and ranks.is_preemption()


if __name__ == "__main__":
    exit_with(main(sys.argv[1:]))
