"""Free space and quota, as far as a file system shows them; the rest is unknown."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from detslurm._base.access import user_name
from detslurm._base.quantities import human_size
from detslurm.store import mount_of

_SECONDS: Final = 10.0
_KIB: Final = 1024


class Quota(NamedTuple):
    """The room on the file system of a directory: its free bytes, and those that this user has and
    may have. None is unknown; a `limit` of None may also be no limit."""

    path: str
    free: int | None = None
    used: int | None = None
    limit: int | None = None

    @property
    def text(self) -> str:
        """One line for people."""
        free = "unknown" if self.free is None else human_size(self.free)
        if self.used is None:
            return f"{self.path}: {free} free; your quota is unknown"
        limit = "no limit" if self.limit is None else human_size(self.limit)
        share = f" ({100 * self.used / self.limit:.0f}%)" if self.limit else ""
        return f"{self.path}: {free} free; your quota: {human_size(self.used)} of {limit}{share}"


def quota_of(folder: Path) -> Quota:
    """The room on the file system of a directory."""
    free = None
    try:
        state = os.statvfs(folder)
        free = state.f_bavail * state.f_frsize
        mounts = Path("/proc/mounts").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return Quota(str(folder), free)
    kind, point, _ = mount_of(str(folder.resolve()), mounts)
    command = ["quota", "-w", "-p", "-f", point]
    if kind == "lustre":
        command = ["lfs", "quota", "-q", "-u", user_name(), point]
    return Quota(str(folder), free, *parsed(_output(command)))


def _output(argv: Sequence[str]) -> str:
    """The output of a command; empty where it does not exist or hangs."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_SECONDS, check=False,
            env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout  # also where it fails: `quota` fails where a limit is exceeded


def parsed(text: str) -> tuple[int | None, int | None]:
    """Used and allowed bytes in the output of `quota -w -p` or `lfs quota -q`; None is unknown.

    Both have the file system, the KiB in use, the quota and the limit, and lfs begins a line behind
    a long path; a star behind a number marks it as exceeded.
    """
    words = text.replace("*", " ").split()
    for place, *numbers in zip(words, words[1:], words[2:], words[3:], strict=False):
        if "/" in place and all(map(str.isdigit, numbers)):
            used, soft, hard = map(int, numbers)
            limit = soft or hard
            return used * _KIB, limit * _KIB if limit else None
    return None, None
