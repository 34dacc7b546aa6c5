"""Identifies processes, also those of other nodes: a pid alone is not enough.

Files that name a process may lie where all nodes see them, nodes may share a host's name, and
process ids are reused. The rest is unknown: no process is taken for dead without proof.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, Self

_STATE, _START = 0, 19  # fields of /proc/PID/stat behind the name
_OVER: Final = ("Z", "X")


@cache
def node() -> str:
    """Names this host since its last boot, and the process ids that are seen here."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116
        foreign = Path("/proc/self").readlink().name != str(os.getpid())
    except OSError:
        foreign = True
    if foreign:  # /proc shows another process space, or nothing: no process is known to be near
        return os.urandom(8).hex()
    return f"{int(boot.replace('-', ''), 16) ^ space:032x}"  # no hash: OpenSSL takes 3 ms to load


def started(pid: int) -> str | None:
    """When a process began, as the kernel counts; None once it has ended. May raise `OSError`."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[_STATE] in _OVER else fields[_START]


def own_age() -> float | None:
    """Seconds since this process began; None where that can't be known."""
    try:
        ticks = int(started(os.getpid()) or "")
    except (OSError, ValueError):
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return age if age >= 0 else None  # in a time namespace the clock may begin later


def exit_status(returncode: int) -> int:
    """Python's return code as a shell's exit status: 128 + N for death by signal N."""
    return 128 - returncode if returncode < 0 else returncode


class Identity(NamedTuple):
    """A process that no other one will ever be taken for."""

    node: str
    pid: int
    started: str

    @classmethod
    def own(cls) -> Self:
        """This process."""
        return cls(node(), os.getpid(), started(os.getpid()) or "")

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The process that `str()` of an identity names; None for any other text."""
        where, pid, start = [*text.split("-"), "", ""][:3]
        return cls(where, int(pid), start) if pid.isdigit() and start.isdigit() else None

    def __str__(self) -> str:
        return f"{self.node}-{self.pid}-{self.started}"

    def alive(self) -> bool | None:
        """Whether it lives; None where that can't be known: on another node, hidden in /proc."""
        if self.node != node():
            return None
        try:
            found = started(self.pid)
        except OSError:
            return None
        if found is None and _hidden(self.pid):
            return None
        return found == self.started

    def is_dead(self) -> bool:
        """Whether it is certain that the process has ended: a process of another node may live."""
        return self.alive() is False

    def send(self, sig: signal.Signals) -> bool:
        """Send it a signal; False where it is gone, out of reach or another user's."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, sig)
        except OSError:
            return False
        return True


def _hidden(pid: int) -> bool:
    """Whether a process of another user exists that /proc does not show (mounted with hidepid).

    A zombie, which /proc does show, has ended, though it still takes signals.
    """
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not Path(f"/proc/{pid}").exists()
    except OSError:
        pass
    return False


def is_interactive() -> bool:
    """Whether a user types: a notebook, or Python's prompt. IPython sets the prompt, too."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def fatal_error() -> BaseException | None:
    """While Python ends: the exception that ended the script. A prompt survives any."""
    if is_interactive():
        return None
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # since 3.12, before
