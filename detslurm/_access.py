"""Who besides its owner may read what is created in a directory: its group, if that one is shared.

A directory is shared if it has the set-group-ID bit and its group may read and enter it. That is
decided once, at a store's root, and each new file and directory takes it over from the directory
that it is created in, whatever the umask of its creator. Everything else is its owner's alone.
"""

from __future__ import annotations

import functools
import os
import stat

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
COMMON_DIRECTORY = stat.S_ISVTX | stat.S_ISGID | 0o770
"""Each of the group may add to such a directory, and remove what is their own."""

_SHARED = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP


def is_shared(mode: int) -> bool:
    """Whether the mode of a directory says that its group reads what is created in it."""
    return mode & _SHARED == _SHARED


@functools.lru_cache(maxsize=4096)
def _stat(folder: str) -> os.stat_result:
    return os.stat(folder or ".")  # noqa: PTH116 (pathlib takes longer)


clear_cache = _stat.cache_clear


def shared(folder: str) -> bool:
    """As `is_shared`, for a directory that exists; it is looked at once a process."""
    return is_shared(_stat(folder).st_mode)


def inherited_owner(folder: str) -> tuple[int, int] | None:
    """Whose what root creates in `folder` must be, for its owner could not read it else."""
    if os.geteuid() != 0:
        return None
    found = _stat(folder)
    common = found.st_mode & stat.S_ISVTX  # there everybody has something of their own
    return None if common or found.st_uid == 0 else (found.st_uid, found.st_gid)


def file_mode(folder: str) -> int:
    """The mode of a new file in `folder`; secrets have `PRIVATE_FILE` anywhere."""
    return 0o640 if shared(folder) else PRIVATE_FILE


def directory_mode(folder: str) -> int:
    """The mode of a new directory in `folder`."""
    return stat.S_ISGID | 0o750 if shared(folder) else PRIVATE_DIRECTORY


def own_name(root: str, name: str) -> str:
    """What something in a store is called of which each user of a shared store has their own.

    Whoever had one before the store was shared keeps it.
    """
    if not _exists_shared(root) or _is_mine(f"{root}/{name}"):
        return name
    stem, dot, suffix = name.partition(".")
    return f"{stem}-{os.geteuid()}{dot}{suffix}"


def _exists_shared(root: str) -> bool:
    try:
        return shared(root)
    except OSError:
        return False  # there is no store yet, or none that can be used


def _is_mine(path: str) -> bool:
    try:
        return os.stat(path).st_uid == os.geteuid()  # noqa: PTH116
    except OSError:
        return False
