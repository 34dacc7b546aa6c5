"""Runs of one job that share a warm interpreter (`slurm.warm_start`): the agent's side.

The agent serves its job's runs one after the other. A process that has imported what the first
run imported from libraries forks the code of each: `warm_interpreter`.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from detslurm._base.child_processes import die_with_parent
from detslurm.exec import warm_interpreter
from detslurm.exec.agent_loop import FileEvent

# Each run has others of these; what libraries read at their import is none of them.
_OF_A_RUN = re.compile(r"DET_|DETSLURM_|MASTER_(ADDR|PORT)$|NODE_RANK$|PET_|WANDB_DIR$")
_GONE = "the warm interpreter was killed"


class NeedsNewProcess(Exception):
    """The warm interpreter can't give this run what a new process gives."""


class WarmChild:
    """A process that the warm interpreter forks, as far as the agent uses a `Popen`."""

    def __init__(self, output: int) -> None:
        self.stdout = os.fdopen(output, "rb", buffering=0)
        self.returncode: int | None = None
        self.refusal: str | None = None
        self.is_pending = True

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        return self.returncode

    def on_answer(self, answer: Mapping[str, int | str]) -> None:
        """The interpreter has begun it, or it has ended, or it can't be."""
        self.is_pending = False
        if "status" in answer:
            self.returncode = os.waitstatus_to_exitcode(int(answer["status"]))
        elif "refused" in answer:
            self.refusal = str(answer["refused"])


class WarmPython:
    """The warm interpreter of an agent; it is started for the first run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._python = ""
        self._fixed: dict[str, str] = {}
        self._connection: socket.socket | None = None
        self._answers = b""
        self._child: WarmChild | None = None
        self._refusal: str | None = None  # once it stands, it stands for all further runs

    @property
    def pids(self) -> list[int]:
        """Its process, which is not a run's."""
        return [] if self._process is None else [self._process.pid]

    def start(self, words: Sequence[str], env: Mapping[str, str], workdir: Path) -> WarmChild:
        """Ask for a process; it is pending until the interpreter has answered.

        Raises `NeedsNewProcess`, and `OSError` where none can be started.
        """
        python = shutil.which(words[0], path=env.get("PATH"))
        if python is None:
            raise FileNotFoundError(f"{words[0]}: not found")
        fixed = {name: value for name, value in env.items() if not _OF_A_RUN.match(name)}
        if self._refusal is not None:
            raise NeedsNewProcess(self._refusal)
        if self._process is None or self._process.poll() is not None:
            self._begin(python, fixed)
        elif python != self._python or fixed != self._fixed:
            other = {n for n, _ in fixed.items() ^ self._fixed.items()} or {"python3"}
            raise NeedsNewProcess(f"not the same as in the first run: {', '.join(sorted(other))}")
        output, code_output = os.pipe()
        request = {"words": words[1:], "env": dict(env), "cwd": str(workdir)}
        assert self._connection is not None
        try:
            line = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(self._connection, [line], [code_output])
            self._connection.sendall(line[sent:])
        except (BrokenPipeError, ConnectionResetError):
            os.close(output)
            raise NeedsNewProcess(_GONE) from None
        finally:
            os.close(code_output)
        self._child = WarmChild(output)
        return self._child

    def _begin(self, python: str, fixed: dict[str, str]) -> None:
        self._python, self._fixed, self._answers = python, fixed, b""
        self._connection, other = socket.socketpair()
        script = str(Path(warm_interpreter.__file__).absolute())
        with other:
            self._process = subprocess.Popen(
                [python, script, str(other.fileno())],
                env=fixed,
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                preexec_fn=die_with_parent,
            )

    def end(self) -> None:
        """Kill it, and with it the code that it has forked."""
        if self._process is not None and self._connection is not None:
            self._process.kill()
            self._process.wait()
            self._connection.close()

    def events(self) -> Iterator[FileEvent]:
        """The file to wait for at this moment."""
        if self._child is not None and self._connection is not None:
            yield self._connection.fileno(), selectors.EVENT_READ, self._read_answers

    def _read_answers(self) -> None:
        assert self._connection is not None and self._child is not None
        child = self._child
        try:
            data = self._connection.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        *lines, self._answers = (self._answers + data).split(b"\n")
        for line in lines:
            child.on_answer(json.loads(line))
        if not data:  # it was killed, and its code with it
            child.on_answer({"refused": _GONE} if child.is_pending else {"status": signal.SIGKILL})
        if child.refusal is not None:
            self._refusal = child.refusal
        if not data or child.refusal is not None:
            self.end()
        if child.refusal is not None or child.returncode is not None:
            self._child = None
