"""The program on a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


def on_terminal(
    *args: object,
    columns: int = 80,
    lines: int = 24,
    env: Mapping[str, str] | None = None,
    errors: bool = False,
) -> str:
    """What `detslurm ARGS` writes to a terminal of that size, with or without its errors; the pager
    is `cat`."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    unset = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    known = {name: value for name, value in os.environ.items() if name not in unset}
    settings = {"TERM": "xterm-256color", "PAGER": "cat", **(env or {})}
    argv = [sys.executable, "-m", "detslurm.cli", *map(str, args)]
    with subprocess.Popen(
        argv, stdin=child, stdout=child, stderr=child if errors else subprocess.DEVNULL,
        env=known | settings,
    ) as process:  # fmt: skip
        os.close(child)
        seen = b""
        while chunk := _read(parent):
            seen += chunk
        process.wait()
    os.close(parent)
    return seen.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # nobody has the other end open any more
        return b""


def without_colors(text: str) -> str:
    """The text as a person sees it."""
    return _ESCAPE.sub("", text)


class InteractiveShell:
    """A shell that a user types into."""

    def __init__(self, name: str, env: Mapping[str, str]) -> None:
        self._terminal, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
        environment = {**os.environ, "TERM": "xterm", **env}
        argv = ["setsid", "--ctty", name, "-i"]
        self._process = subprocess.Popen(
            argv, stdin=child, stdout=child, stderr=child, env=environment
        )
        os.close(child)
        self.seen = ""

    def type(self, keys: str, expected: str, timeout: float = 60.0) -> None:
        """Type, and wait until the terminal shows something more than before."""
        begin = len(self.seen)
        os.write(self._terminal, keys.encode())
        end = time.monotonic() + timeout
        while expected not in self.seen[begin:]:
            readable, _, _ = select.select(
                [self._terminal], [], [], max(0.0, end - time.monotonic())
            )
            chunk = _read(self._terminal) if readable else b""
            assert chunk, f"no {expected!r} in {self.seen[begin:]!r}"
            self.seen += chunk.decode(errors="replace")

    def end(self) -> None:
        """Close the terminal, which ends the shell."""
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)
