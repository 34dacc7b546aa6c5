"""Count the system calls that take a path: what a shared file system feels of a program."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.measure import run
from benchmarks.report import Skip

_CALL = re.compile(r"^(\d+) +(?!\+\+\+|---|<\.\.\.)(\w+)\(")
_UNFINISHED = " <unfinished ...>"
_RESUMED = re.compile(r"^\d+ +<\.\.\. \w+ resumed>")
_FORKS = frozenset({"fork", "vfork", "clone", "clone3"})


class Traced:
    """The calls that a program and its children made, in order."""

    def __init__(self, lines: Sequence[str]) -> None:
        found = [(match, line) for line in _whole(lines) if (match := _CALL.match(line))]
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

    def executed(self, program: str, argument: str = "") -> int:
        """How often a program of that name was started, with an argument if one is given."""
        wanted = re.compile(rf'execve\("([^"]*/)?{re.escape(program)}".*= 0$')
        return sum(bool(wanted.search(line)) and argument in line for _, _, line in self._calls)


def _whole(lines: Iterable[str]) -> list[str]:
    """The lines with those joined between which strace wrote another process's."""
    whole: list[str] = []
    begun: dict[str, int] = {}  # by process
    for line in lines:
        process = line.partition(" ")[0]
        if (resumed := _RESUMED.match(line)) and process in begun:
            at = begun.pop(process)
            whole[at] = whole[at].removesuffix(_UNFINISHED) + line[resumed.end() :]
        else:
            if line.endswith(_UNFINISHED):
                begun[process] = len(whole)
            whole.append(line)
    return whole


def available() -> bool:
    """Whether calls can be counted here."""
    return shutil.which("strace") is not None


def strace_to(log: Path) -> list[str]:
    """What goes before a command whose calls `log` is to have."""
    calls = "trace=%file,fork,vfork,clone,clone3"
    return ["strace", "-f", "-qq", "-s", "300", "-o", str(log), "-e", calls]


def trace(
    argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Traced:
    """Run a command under strace. Raises `Skip` without strace, `RuntimeError` when it fails."""
    if not available():
        raise Skip("strace is not installed")
    with tempfile.NamedTemporaryFile("r", errors="replace") as log:
        run([*strace_to(Path(log.name)), *argv], env, cwd)
        return Traced(log.read().splitlines())
