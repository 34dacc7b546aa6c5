"""The entrypoint of a shell: sessions inside the job, until none has been in use for a while.

The node listens on one port. Each connection gets an sshd of its own, which runs as the user and
takes one key. Where no sshd can run the job only stays, for sessions that srun starts in it.
"""

from __future__ import annotations

import argparse
import os
import selectors
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Final

from detslurm._base import node_files
from detslurm._base.access import user_name
from detslurm._base.flag import PreemptFlag
from detslurm._base.ssh_client import ShellHost, host_alias
from detslurm.exec.orphans import RunMark
from detslurm.exec.ports import reserve
from detslurm.exec.run_processes import RunProcesses
from detslurm.exec.signals import SignalInbox
from detslurm.exec.tasks import shell_activity as activity
from detslurm.exec.tasks import shell_files as files
from detslurm.exec.tasks import sshd
from detslurm.exec.tasks.idle import IdleClock
from detslurm.exec.text_log import print_message
from detslurm.store import ExperimentDir, node_name, publish_address

_SAMPLE_SECONDS: Final = 30.0
_FLAG_SECONDS: Final = 1.0
_MOST_STRANGERS: Final = 10
"""Clients at once that have not proved who they are: each costs the job a process."""

_MOST_LINES: Final = 1000
"""Lines of the log about such clients."""

_END_SECONDS: Final = 2.0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="shell_server")
    parser.add_argument("--idle", type=float, default=float("inf"))  # seconds
    parser.add_argument("--work-dir", default=os.environ.get("HOME", "/"))
    parser.add_argument("--sshd")
    return parser.parse_args(argv)


class ShellServer:
    """Serves sessions of a run until they are idle for so many seconds."""

    def __init__(self, mark: RunMark, idle: float) -> None:
        self._processes, self._idle = RunProcesses(mark), idle
        self._selector = selectors.DefaultSelector()
        self._inbox = SignalInbox([SIGTERM, SIGINT, SIGHUP])
        self._selector.register(self._inbox, selectors.EVENT_READ, lambda: None)
        self._flag = PreemptFlag.of_this_node()
        self._connections: set[sshd.Connection] = set()
        self._lines = _MOST_LINES
        self._every = min(_SAMPLE_SECONDS, idle / 4)
        self._clock, self._sampled = IdleClock(idle, self._every), time.monotonic()
        self._sample = self._take_sample()

    def listen(self, listener: socket.socket, program: str, node: Path) -> None:
        """Serve the clients of a socket, too, by an sshd with the configuration in `node`."""

        def accept() -> None:
            client, _ = listener.accept()
            if sum(not one.accepted for one in self._connections) < _MOST_STRANGERS:
                try:
                    self._add(sshd.Connection(program, node, client))
                    return
                except OSError as error:  # no process can be started now: others go on
                    print_message(f"can't serve a connection: {error}")
            client.close()

        self._selector.register(listener, selectors.EVENT_READ, accept)

    def serve(self) -> str:
        """Serve until no session has been in use for long enough, or the job ends; returns why."""
        while (wait := self._sampled + self._every - time.monotonic()) > 0 or not self._is_idle():
            for key, _ in self._selector.select(min(max(wait, 0.0), _FLAG_SECONDS)):
                key.data()
            if self._inbox.take() or (self._flag is not None and self._flag.preempt):
                return "its job is ended by Slurm or by its user"
        return f"it was not in use for {self._idle / 60:.3g} min (idle_timeout)"

    def _add(self, connection: sshd.Connection) -> None:
        self._connections.add(connection)
        read = lambda: self._read(connection)  # noqa: E731
        self._selector.register(connection.log, selectors.EVENT_READ, read)

    def _read(self, connection: sshd.Connection) -> None:
        was_accepted, lines = connection.accepted, connection.read_log()
        if connection.accepted and not was_accepted:
            self._clock.look(in_use=True)
        for line in lines or ():
            self._lines -= not connection.accepted
            if connection.accepted or self._lines > 0:
                print_message(line)
        if lines is None:
            self._selector.unregister(connection.log)
            self._connections.discard(connection)
            connection.close()

    def _is_idle(self) -> bool:
        """Look at the sessions, and return whether they have been idle for too long."""
        before, now = self._sample, self._take_sample()
        self._sample, self._sampled = now, time.monotonic()
        in_use = before is None or now is None or activity.in_use(before, now)
        return self._clock.look(in_use=in_use)

    def _take_sample(self) -> activity.Sample | None:
        passed = {id(one): one.passed() for one in self._connections if one.accepted}
        return activity.take_sample(self._processes, passed)

    def close(self, text: str) -> None:
        """End all sessions, with a line on their terminals."""
        activity.write_line(activity.terminals(self._processes.parents()), text)
        for connection in self._connections:
            connection.end()
        until = time.monotonic() + _END_SECONDS
        for connection in self._connections:
            connection.wait(until - time.monotonic())


@contextmanager
def _port_of(mark: RunMark) -> Iterator[socket.socket]:
    """A socket that listens on a port of the run."""
    reservation = reserve(f"shell.{mark.job}.{mark.trial}.{mark.run}")
    try:
        with socket.create_server(("", reservation.port), backlog=16) as listener:
            yield listener
    finally:
        reservation.close()


def _offer(
    stack: ExitStack, server: ShellServer, keys: Path, mark: RunMark, asked: argparse.Namespace
) -> None:
    """Let clients find the shell: by srun, and by ssh where sshd can run."""
    host, node = node_name(), node_files.make_directory("shell")
    files.write_environment(node, os.environ)
    files.offer_srun(keys, files.session_command(node, asked.work_dir))
    try:
        program = sshd.find_sshd(asked.sshd)
        sshd.configure(program, node, asked.work_dir)
    except sshd.NoSshd as error:
        print_message(f"{error}: sessions begin with srun")
        publish_address(key=str(keys), problem=str(error))
        return
    listener = stack.enter_context(_port_of(mark))
    port = listener.getsockname()[1]
    task = ExperimentDir.at(Path(mark.experiment)).id
    files.offer_ssh(keys, node, ShellHost(task, host, port, user_name(), str(keys)))
    server.listen(listener, program, node)
    publish_address(port=port, key=str(keys), problem=sshd.terminal_problem())
    print_message(f"{program} takes sessions on {host}, port {port}")


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run a shell. Returns 0, because a shell that ends has done all that it is for."""
    mark = RunMark.of(environ)
    if mark is None:
        raise SystemExit("this program is the entrypoint of `detslurm shell start`")
    if environ.get("NODE_RANK", "0") != "0":
        return 0  # sessions are on the first node, and reach the others with srun
    asked = _options(argv)
    server = ShellServer(mark, asked.idle)
    experiment = ExperimentDir.at(Path(mark.experiment))
    keys = experiment.trial(mark.trial).path / host_alias(experiment.id)
    shutil.rmtree(keys, ignore_errors=True)  # of an earlier run
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, keys, ignore_errors=True)
        _offer(stack, server, keys, mark, asked)
        why = server.serve()
        print_message(f"this shell ends: {why}")
        server.close(f"detslurm: this shell ends: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
