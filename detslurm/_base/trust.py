"""Whether another user could have changed a file that is about to be unpickled or executed."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

UNVERIFIED = ".detslurm-unverified"
"""A file beside copies from a bucket whose contents were compared with no record."""

NO_DIGEST = f"no record has its digest (delete {UNVERIFIED} in your copy to trust it)"


def mark_unverified(folder: Path) -> None:
    """Let nothing in a directory be unpickled or executed unless the user asks for it."""
    (folder / UNVERIFIED).touch()


def is_unverified(path: Path) -> bool:
    """Whether a file or directory is a copy from a bucket that others may write to."""
    return any(_is_own_file(folder / UNVERIFIED) for folder in (path, *path.parents))


def _is_own_file(mark: Path) -> bool:
    try:  # anybody could put one into /tmp
        return mark.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def others_can_change(path: Path) -> bool:
    """Whether users other than this one and root can change a file or put another in its place.

    A directory on the way that no other user may enter, as a store's root is, protects all below.
    """
    path = path.resolve()
    return is_unverified(path) or _others_can_write(path)


def _others_can_write(path: Path) -> bool:
    near = [place.stat() for place in (path, path.parent)]
    if any(status.st_uid not in (os.geteuid(), 0) for status in near):
        return True
    return _reachable(path) and any(map(_writable, (path, path.parent), near))


def trusted(path: Path) -> Path:
    """The path of a file to unpickle.

    Raises:
        PermissionError: If others could have put code there.
    """
    if others_can_change(path):
        raise PermissionError(f"others can change {path}: a pickle runs code that is in it")
    return path


def others_can_change_below(folder: Path) -> bool:
    """The same of a directory with all files in it, bytecode and libraries too."""
    if others_can_change(folder):
        return True
    inside = (path for path in folder.rglob("*") if path.is_file())
    return _reachable(folder.resolve()) and any(
        _others_can_write(path.resolve()) for path in inside
    )


def _reachable(path: Path) -> bool:
    return all(place.stat().st_mode & 0o011 for place in path.parents)


def _writable(path: Path, status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_alone(path, status)


def _is_alone(path: Path, status: os.stat_result) -> bool:
    """Whether the group that can write is the owner's private group.

    Where each user has a group of their own, umask 002 is usual and gives nothing away. Such a
    group is the owner's primary one, has the owner's name and no other member; anything else, a
    group that can't be resolved too, is taken for shared. With an access control list the bits
    of the group stand for all users on the list.
    """
    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    private = owner.pw_gid == status.st_gid and group.gr_name == owner.pw_name
    return private and set(group.gr_mem) <= {owner.pw_name} and not _has_acl(path)


def _has_acl(path: Path) -> bool:
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except OSError:  # a file system without extended attributes has none
        return False
