"""A notebook's job: runs Jupyter on its node, and ends it when it is idle or the job has to end.

    python3 -P -m detslurm.exec.tasks.notebook_server --idle-timeout 1800

Kernels are below this process, so that they have the job's limits, devices and environment.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from detslurm._base.child_processes import die_with_parent, in_cgroup_of_step
from detslurm._base.flag import PreemptFlag
from detslurm._base.idle_types import IDLE_TYPES, IdleType
from detslurm._base.node_files import make_socket_directory
from detslurm._base.process import exit_status
from detslurm._base.quantities import counted
from detslurm.exec.signals import exit_with
from detslurm.exec.start_hooks import with_start_hook
from detslurm.exec.tasks.idle import IdleClock
from detslurm.exec.tasks.jupyter_api import JupyterError, JupyterServer, read_server
from detslurm.exec.tasks.jupyter_settings import KERNEL_PATIENCE, JupyterFiles, installed_interface
from detslurm.exec.tasks.notebook_use import ServerUse, idle_reason, is_in_use
from detslurm.store import publish_address

_POLL: Final = 0.5
_LONGEST_INTERVAL: Final = 10.0
_SAVING: Final = 5.0  # seconds for pages, which read the notice every two seconds, to save
_INTERRUPTED: Final = 20.0  # seconds for `finally` blocks of interrupted cells


class Notebook:
    """A Jupyter server as a child of this process; its files are written already.

    Outside of a job this node has no preemption flag.
    """

    def __init__(self, interface: str, files: JupyterFiles, flag: PreemptFlag | None) -> None:
        self._files, self._flag = files, flag
        self._terminated = False
        signal.signal(signal.SIGTERM, self._note_signal)
        self._child = _start(interface, files.environment(os.environ))

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        code = self._child.poll()
        return None if code is None else exit_status(code)

    @property
    def has_to_end(self) -> bool:
        """Whether the job is preempted, near its time limit, or cancelled."""
        return self._terminated or (self._flag is not None and self._flag.is_to_leave)

    def _note_signal(self, number: int, frame: object) -> None:
        # Slurm sends it to every process of the step at a preemption, where it uses no cgroups.
        self._terminated = True

    def listening(self) -> JupyterServer | None:
        """Wait until it listens; None if it ends before, or the job has to end."""
        while self.status is None and not self.has_to_end:
            if (server := read_server(self._files.runtime, self._child.pid)) is not None:
                return server
            time.sleep(_POLL)
        return None

    def watch(self, server: JupyterServer, idle_type: IdleType, limit: float | None) -> str | None:
        """Wait until it has been idle for `limit` seconds, and return why it is to end.

        Returns None if it has ended by itself, or the job has to end.
        """
        interval = min(_LONGEST_INTERVAL, (limit or _LONGEST_INTERVAL) / 4)
        clock, before = IdleClock(limit, interval), _use(server)
        while self._sleep(interval):
            now = _use(server)
            if now is None or before is None:
                clock.unknown()
            elif clock.look(in_use=is_in_use(idle_type, now, before)):
                return f"{idle_reason(idle_type)} for {_duration(limit or 0.0)}"
            before = now
        return None

    def _sleep(self, seconds: float) -> bool:
        """Whether it still runs after so many seconds, and the job has not to end."""
        return not self._wait_for(lambda: self.status is not None or self.has_to_end, seconds)

    def save(self, server: JupyterServer) -> None:
        """Let open pages save their documents and running cells leave by KeyboardInterrupt."""
        use = _use(server)
        if use is None:
            return
        with suppress(OSError):
            self._files.announce("The job of this notebook ends. Open documents are being saved.")
        self._wait_for(lambda: self.status is not None, _SAVING)
        for kernel in use.busy:
            with suppress(JupyterError):
                server.interrupt(kernel)
        self._wait_for(lambda: (now := _use(server)) is None or not now.busy, _INTERRUPTED)

    def end(self, server: JupyterServer | None) -> None:
        """End its kernels, which run their exit handlers, and the server."""
        with suppress(JupyterError):
            if server is not None:
                server.shut_down()
                self._wait_for(lambda: self.status is not None, KERNEL_PATIENCE + _POLL)
        if self.status is None:
            self._child.kill()
            self._child.wait()

    @staticmethod
    def _wait_for(condition: Callable[[], bool], seconds: float) -> bool:
        """Whether a condition is true within so many seconds."""
        until = time.monotonic() + seconds
        while not (found := condition()) and (rest := until - time.monotonic()) > 0:
            time.sleep(min(_POLL, rest))
        return found


def main(argv: Sequence[str]) -> int:
    """Run a notebook until it is idle, is ended from its page, or the job has to end.

    Returns 0 after an end that was meant, else Jupyter's own exit status.
    """
    if os.environ.get("NODE_RANK", "0") != "0":
        return 0  # Jupyter is on the first node, and reaches the others with srun
    options = _options(argv)
    interface = installed_interface()
    if interface is None:
        print(
            f"detslurm: {sys.executable} has no Jupyter: python3 -m pip install jupyterlab",
            flush=True,
        )
        return 1
    files, token = JupyterFiles(make_socket_directory()), secrets.token_urlsafe(24)
    host, portal_path = socket.gethostname(), None
    if options.portal:
        options.port = options.port or _free_port()
        portal_path = f"/node/{host}/{options.port}/"  # as Open OnDemand has it
    files.write(token, options.port, portal_path)
    notebook = Notebook(interface, files, PreemptFlag.of_this_node())
    server = notebook.listening()
    if server is not None:
        publish_address(socket=server.socket, port=server.port, token=token, path=portal_path)
        _say(f"Jupyter listens on {host}, in {Path.cwd()}")
        reason = notebook.watch(server, options.idle_type, options.idle_timeout or None)
        if reason is not None:
            _say(f"the notebook ends because {reason}")
    return _end(notebook, server)


def _end(notebook: Notebook, server: JupyterServer | None) -> int:
    """End what still runs, and return this job's exit status."""
    status = notebook.status
    if status is not None:
        _say("Jupyter was shut down" if status == 0 else f"Jupyter ended with status {status}")
        return status
    if notebook.has_to_end:
        _say(
            "the job has to end (time limit, preemption or a request). Open pages save their"
            " documents, running cells are interrupted, kernels run their exit handlers"
        )
        if server is not None:
            notebook.save(server)
    notebook.end(server)
    return 0


def _start(interface: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    # Where Slurm's SIGTERM comes to every process, kernels would die of it before they have saved:
    # they begin with it blocked, and the hook unblocks it in each Python but Jupyter's own.
    blocked = set() if in_cgroup_of_step() else {signal.SIGTERM}

    def in_child() -> None:
        die_with_parent()
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)

    return subprocess.Popen(
        [sys.executable, "-P", "-m", interface],
        env=with_start_hook(env, "sigterm") if blocked else env,
        preexec_fn=in_child,
    )


def _use(server: JupyterServer) -> ServerUse | None:
    """A look at the server; None where it does not answer."""
    try:
        return server.use()
    except JupyterError:
        return None


def _duration(seconds: float) -> str:
    return counted(seconds, "second") if seconds < 60 else counted(seconds / 60, "minute")


def _free_port() -> int:
    """A port that is free now: its number is part of the portal's path."""
    with socket.create_server(("", 0)) as held:
        return int(held.getsockname()[1])


def _say(text: str) -> None:
    print(f"detslurm: {text}", flush=True)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="notebook_server", description=__doc__)
    parser.add_argument("--idle-timeout", type=float, default=0.0, help="in seconds; 0 is never")
    parser.add_argument("--idle-type", choices=IDLE_TYPES, default=IDLE_TYPES[0])
    parser.add_argument("--port", type=int, help="a port of the loopback address; 0 is any")
    parser.add_argument("--portal", action="store_true", help="listen for Open OnDemand")
    return parser.parse_args(argv)


if __name__ == "__main__":
    exit_with(main(sys.argv[1:]))
