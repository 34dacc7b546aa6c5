"""Where a launcher asks the runner to start a second step, outside of its own step.

At a preemption Slurm signals every process of every step. An srun that a launcher started would
take that as the order to kill its ranks; the runner's srun is outside of all steps, and
only its ranks get the signal, which they survive. The socket has no name on disk and both ends
check the other's user.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from detslurm._base import contract
from detslurm._base.child_processes import die_with_parent
from detslurm._base.identity import is_ours
from detslurm._base.process import exit_status

# How long an srun that was asked to end its ranks may take for it.
_GRACE = 5.0


Environment = Callable[[Mapping[str, str]], dict[str, str]]


@contextlib.contextmanager
def serve_steps(environment: Environment = dict) -> Iterator[None]:
    """While an attempt runs, start the steps that its launchers ask for.

    `environment` makes a step's out of that of the launcher, which may be in a container.
    """
    # An abstract socket: no file that a crash would leave, and nothing to find on a shared /tmp.
    # Anybody on the node may connect, so both ends check the user that the kernel names.
    name = f"detslurm-steps-{os.getuid()}-{os.urandom(8).hex()}"
    os.environ[contract.STEP_SERVER] = name
    server = StepServer(f"\0{name}", environment)
    try:
        yield
    finally:
        del os.environ[contract.STEP_SERVER]
        server.close()


class StepServer:
    """Starts steps with the caller's outputs, and ends those whose caller is gone."""

    def __init__(self, address: str, environment: Environment = dict) -> None:
        self._environment = environment
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(address)
        self._server.listen()
        # Held from the check of `_closed` until the step is listed: otherwise close() could miss a
        # step that is just being started, which would then run on without anybody to end it.
        self._starting = threading.Lock()
        self._closed = False
        self._steps: list[subprocess.Popen[bytes]] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Start no more steps and end those that run."""
        # shutdown() ends an accept() that waits in the other thread; close() alone would not.
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._starting:
            self._closed = True
        for step in self._steps:
            _end(step)

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._server.accept()
            except OSError:
                return  # closed
            # One thread a step, which waits for it: srun is set to die with its parent, and for the
            # kernel that is the thread that started it, not the process.
            threading.Thread(target=self._run, args=(caller,), daemon=True).start()

    def _run(self, caller: socket.socket) -> None:
        with caller:
            if not is_ours(caller):
                return
            _, outputs, _, _ = socket.recv_fds(caller, 1, 2)
            with caller.makefile() as lines:
                request = json.loads(lines.readline())
            step = self._start(request, outputs)
            if step is None:
                return
            # Two things may end first: the step, or its caller (kill -9 of the launcher). Each has
            # a thread that waits for it; whichever comes second finds nothing left to do.
            threading.Thread(target=_end_with, args=(caller.dup(), step), daemon=True).start()
            status = exit_status(step.wait())
            with contextlib.suppress(OSError):  # a caller that is gone needs no answer
                caller.sendall(b"%d\n" % status)

    def _start(self, request: dict[str, Any], outputs: list[int]) -> subprocess.Popen[bytes] | None:
        try:
            with self._starting:
                if self._closed:
                    return None
                step = subprocess.Popen(
                    request["argv"],
                    env=self._environment(request["env"]),
                    stdin=subprocess.DEVNULL,
                    stdout=outputs[0],
                    stderr=outputs[1],
                    preexec_fn=die_with_parent,
                )
                self._steps.append(step)
                return step
        finally:
            # The step has its own copies. Kept open here, they would hide the end of its output.
            for fd in outputs:
                os.close(fd)


def _end_with(caller: socket.socket, step: subprocess.Popen[bytes]) -> None:
    with caller, contextlib.suppress(OSError):
        caller.recv(1)
    _end(step)


def _end(step: subprocess.Popen[bytes]) -> None:
    step.terminate()  # srun ends its ranks on all nodes
    try:
        step.wait(_GRACE)
    except subprocess.TimeoutExpired:
        step.kill()
