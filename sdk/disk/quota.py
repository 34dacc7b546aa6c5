"""How much room there is, as far as a file system tells; what it does not tell is unknown."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from detslurm._access import user_name
from detslurm._quantities import human_size
from detslurm.store.probing import mount_of

_SECONDS: Final = 10.0
_KIB: Final = 1024


class Quota(NamedTuple):
    """The room on one file system.

    Attributes:
        path: A directory on it.
        free: The bytes that are free for everybody; None if unknown.
        used: The bytes of this user's that count; None if unknown.
        limit: The bytes that this user may have; None if there is no limit, or it is unknown.
    """

    path: str
    free: int | None = None
    used: int | None = None
    limit: int | None = None

    @property
    def text(self) -> str:
        """All of it in a line."""
        free = "unknown" if self.free is None else human_size(self.free)
        if self.used is None:
            return f"{self.path}: {free} free; your quota is unknown"
        limit = "no limit" if self.limit is None else human_size(self.limit)
        share = f" ({100 * self.used / self.limit:.0f}%)" if self.limit else ""
        return f"{self.path}: {free} free; your quota: {human_size(self.used)} of {limit}{share}"


def quota_of(folder: Path) -> Quota:
    """What the file system of a directory tells."""
    free = None
    try:
        state = os.statvfs(folder)
        free = state.f_bavail * state.f_frsize
        mounts = Path("/proc/mounts").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return Quota(str(folder), free)
    kind, point, _ = mount_of(str(folder.resolve()), mounts)
    used, limit = _asked(kind, point)
    return Quota(str(folder), free, used, limit)


def _asked(kind: str, point: str) -> tuple[int | None, int | None]:
    user = user_name()
    if kind == "lustre":
        return parsed(_output(["lfs", "quota", "-q", "-u", user, point]))
    return parsed(_output(["quota", "-w", "-p", "-f", point]))


def _output(argv: Sequence[str]) -> str:
    """What a command prints; nothing where it does not exist, fails or hangs."""
    if shutil.which(argv[0]) is None:
        return ""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_SECONDS, check=False,
            env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout  # also where it fails: that is how `quota` tells that a limit is exceeded


def parsed(text: str) -> tuple[int | None, int | None]:
    """Used and allowed bytes in the output of `quota -w -p` or `lfs quota -q`.

    Both have the file system, the KiB in use, the quota and the limit, and lfs begins a line behind
    a long path; a star behind a number says that it is exceeded. Anything else is unknown.
    """
    words = text.replace("*", " ").split()
    for place, *numbers in zip(words, words[1:], words[2:], words[3:], strict=False):
        if "/" in place and all(map(str.isdigit, numbers)):
            used, soft, hard = map(int, numbers)
            limit = soft or hard
            return used * _KIB, limit * _KIB if limit else None
    return None, None
