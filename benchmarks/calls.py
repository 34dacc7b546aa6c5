"""Count the system calls that take a path: what a shared file system feels of a program."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measure import run
from benchmarks.report import Skip

_CALL = re.compile(r"^(\d+) +(?!\+\+\+|---|<\.\.\.)(\w+)\(")
_FORKS = frozenset({"fork", "vfork", "clone", "clone3"})


class Traced:
    """The calls that a program and its children made, in order."""

    def __init__(self, lines: Sequence[str]) -> None:
        found = [(match, line) for line in lines if (match := _CALL.match(line))]
        self._calls = [(int(match[1]), match[2], line) for match, line in found]

    @property
    def calls(self) -> list[tuple[int, str]]:
        """Who made each call with a path (a thread's id), and its line."""
        return [(pid, line) for pid, name, line in self._calls if name not in _FORKS]

    @property
    def paths(self) -> int:
        """Calls with a path, of all processes."""
        return sum(name not in _FORKS for _, name, _ in self._calls)

    @property
    def before_first_child(self) -> int:
        """Calls with a path that the program itself made before it started another one.

        Those in /proc reach no file system, and are as many as the machine has processes.
        """
        first = self._calls[0][0]
        count = 0
        for pid, name, line in self._calls:
            if pid != first:
                continue
            if name in _FORKS:
                if "CLONE_THREAD" in line:
                    continue
                break
            count += '"/proc/' not in line
        return count

    def under(self, folder: Path) -> list[str]:
        """Calls that name something below a folder."""
        return [line for _, name, line in self._calls if name not in _FORKS and f"{folder}" in line]

    def executed(self, program: str) -> int:
        """How often a program of that name was started."""
        wanted = re.compile(rf'execve\("([^"]*/)?{re.escape(program)}".*= 0$')
        return sum(bool(wanted.search(line)) for _, _, line in self._calls)


def available() -> bool:
    """Whether calls can be counted here."""
    return shutil.which("strace") is not None


def trace(
    argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Traced:
    """Run a command under strace. Raises `Skip` without strace, `RuntimeError` when it fails."""
    strace = shutil.which("strace")
    if strace is None:
        raise Skip("strace is not installed")
    with tempfile.NamedTemporaryFile("r", errors="replace") as log:
        command = [strace, "-f", "-qq", "-s", "300", "-o", log.name]
        command += ["-e", "trace=%file,fork,vfork,clone,clone3", *argv]
        run(command, env, cwd)
        return Traced(log.read().splitlines())
