"""Permissions of new files: the group of a directory may read them if the directory is shared.

A directory is shared if it has the set-group-ID bit and its group may read and enter it. That is
decided once, at a store's root, and each new file and directory takes it over from the directory
that it is created in, whatever the umask of its creator. Everything else is its owner's alone.
"""

from __future__ import annotations

import functools
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
COMMON_DIRECTORY = stat.S_ISVTX | stat.S_ISGID | 0o770
"""Each of the group may add to such a directory, and remove their own entries."""

NOBODY = 65534
"""A file server's name for owners that it can't name, and for root whom it doesn't trust."""

UNKNOWN_OWNERS = frozenset({0, NOBODY})
"""Owners of files where a server gives all files one owner; no other user can make such files."""

_SHARED = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP


def is_shared(mode: int) -> bool:
    """Whether a directory's mode lets its group read new entries."""
    return mode & _SHARED == _SHARED


@functools.lru_cache(maxsize=4096)
def _stat(folder: str) -> os.stat_result:
    return os.stat(folder or ".")  # noqa: PTH116 (pathlib takes longer)


clear_cache = _stat.cache_clear


def shared(folder: str) -> bool:
    """As `is_shared`, for a directory that exists; it is looked at once a process."""
    return is_shared(_stat(folder).st_mode)


def inherited_owner(folder: str) -> tuple[int, int] | None:
    """The owner of files that root creates in `folder`, who could not read them else."""
    if os.geteuid() != 0:
        return None
    found = _stat(folder)
    common = found.st_mode & stat.S_ISVTX  # there everybody has something of their own
    return None if common or found.st_uid == 0 else (found.st_uid, found.st_gid)


@contextmanager
def as_owner_of(folder: str) -> Iterator[None]:
    """Let root do in this block what the owner of a directory may do, and no more.

    Paths to remove come from records and configurations, which their owner can write at will: they
    may name any directory of any user. Does nothing for users other than root.

    Raises:
        OSError: If this root may not act for others.
    """
    if os.geteuid() != 0 or (state := os.lstat(folder)).st_uid == 0:
        yield
        return
    groups, group = os.getgroups(), os.getegid()
    try:
        os.setgroups(_groups_of(state))
        os.setegid(state.st_gid)
        os.seteuid(state.st_uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


def _groups_of(state: os.stat_result) -> list[int]:
    try:
        return os.getgrouplist(pwd.getpwuid(state.st_uid).pw_name, state.st_gid)
    except KeyError:  # the account is gone
        return [state.st_gid]


def user_name() -> str:
    """The acting user, by the process's user id, which the environment can't fake."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def file_mode(folder: str) -> int:
    """The mode of a new file in `folder`; secrets have `PRIVATE_FILE` anywhere."""
    return 0o640 if shared(folder) else PRIVATE_FILE


def directory_mode(folder: str) -> int:
    """The mode of a new directory in `folder`."""
    return stat.S_ISGID | 0o750 if shared(folder) else PRIVATE_DIRECTORY


def own_name(root: str, name: str) -> str:
    """Return the name of an entry of which each user of a shared store has their own.

    A user's entry from before the store was shared keeps its name. Entries that others have made
    under this user's name are not used, because others decide their content.

    Raises:
        PermissionError: If others have made all names that there are.
    """
    me = os.geteuid()
    if not _exists_shared(root) or _owner(f"{root}/{name}") == me:
        return name
    stem, dot, suffix = name.partition(".")
    ends = {f".{suffix}", ".parts"} if dot else {""}  # the index has a directory beside it
    free: str | None = None
    for number in ("", *(f"-{count}" for count in range(2, 10))):
        mine = f"{stem}-{me}{number}"
        owners = {_owner(f"{root}/{mine}{end}") for end in ends}
        if owners <= {None, me, NOBODY}:
            if free is not None or owners != {None}:
                # A name that is there counts before a lower name that is free again.
                return f"{free if owners == {None} else mine}{dot}{suffix}"
            free = mine
    if free is None:
        raise PermissionError(f"others have made {root}/{stem}-{me}{dot}{suffix} and all after it")
    return f"{free}{dot}{suffix}"


def _exists_shared(root: str) -> bool:
    try:
        return shared(root)
    except OSError:
        return False  # there is no store yet, or none that can be used


def _owner(path: str) -> int | None:
    try:
        return os.lstat(path).st_uid
    except OSError:
        return None
