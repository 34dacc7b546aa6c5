"""A store's root: whose it is, who shares it, and the directories that all its users write to."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path
from typing import Final

from detslurm._base import access
from detslurm.store import fs
from detslurm.store.errors import StoreError, explained

COMMON: Final = ("ledger", "experiments", "checkpoints", "models")
"""In a shared store each user adds to these; only the owner can remove or change an entry."""

SHARED: Final = (
    "checkpoints/tensorboard",
    "checkpoints/tensorboard/experiment",
    "shared-templates",
)
"""The directories of users' own files, which others may read."""

# sbatch reads a script by lines, and Slurm takes a backslash out of a path for a job's output.
_UNFIT: Final = {"\n": "a line break", "\\": "a backslash"}


def prepare(root: Path) -> None:
    """Let a root exist that its user may submit to. Raises `StoreError` where others could harm.

    A new root is its user's alone. It is shared once its mode is; see `access`.
    """
    if found := next((name for sign, name in _UNFIT.items() if sign in str(root)), None):
        raise StoreError(
            f"the store's root {str(root)!r} has {found} in its name: choose another directory"
        )
    if not fs.exists(root):
        fs.make_parents(root.parent)
        fs.claim_directory(root, secret=True)
    try:
        state = root.stat()
        if problem := weakness(root, state):
            raise StoreError(problem)
        _make_common(root, state)
    except OSError as error:
        raise explained(error, os.fspath(root)) from error


def weakness(root: Path, state: os.stat_result) -> str | None:
    """Why jobs must not run from this root, with the remedy; None where nothing speaks against it.

    A user who can rename files in the root decides what the jobs of all its users execute.
    """
    mode, me = state.st_mode, os.geteuid()
    if not stat.S_ISDIR(mode):
        return f"the store's root {root} is not a directory"
    if mode & stat.S_IWOTH:
        return (
            f"everybody may write to the store's root {root}, and replace the code that your jobs"
            f" run: `chmod o-w {root}`"
        )
    writable = bool(mode & stat.S_IWGRP)
    if state.st_uid not in (me, 0, access.NOBODY) and not (writable and _shared(state)):
        return (
            f"the store {root} belongs to {owner(state.st_uid)} and is not shared: set"
            f" DETSLURM_ROOT to a directory of your own, or ask for `chmod 3770 {root}`"
        )
    if writable and _shared(state) and state.st_uid != me and not mode & stat.S_ISVTX:
        return (
            f"each of the group {group(state.st_gid)} may rename what lies in the store's root"
            f" {root}, and replace the code that your jobs run: ask {owner(state.st_uid)} for"
            f" `chmod +t {root}`, or set DETSLURM_ROOT to a directory of your own in it"
        )
    if writable and not _shared(state) and not _is_own_group(state.st_gid):
        return (
            f"the group {group(state.st_gid)} may write to the store's root {root}, which is not"
            f" set up to be shared: `chmod g-w {root}` keeps it to yourself, `chmod 3770 {root}`"
            " shares it with the group"
        )
    return None


def _shared(state: os.stat_result) -> bool:
    return access.is_shared(state.st_mode)


def _make_common(root: Path, state: os.stat_result) -> None:
    if not fs.exists(root / COMMON[-1]):
        for name in COMMON:
            fs.claim_directory(root / name, secret=True)
    if not (_shared(state) and state.st_mode & stat.S_IWGRP):
        return
    if state.st_uid == os.geteuid() and not state.st_mode & stat.S_ISVTX:
        root.chmod(stat.S_IMODE(state.st_mode) | stat.S_ISVTX)  # or all could rename its entries
    for name in SHARED:
        fs.claim_directory(root / name, secret=True)
    for name in (*COMMON, *SHARED):
        _share(root / name, state.st_gid)


def _share(folder: Path, gid: int) -> None:
    """Let a common directory be the group's, also one made before the root was shared."""
    found = folder.stat()
    if stat.S_IMODE(found.st_mode) == access.COMMON_DIRECTORY and found.st_gid == gid:
        return
    if found.st_uid != os.geteuid():
        raise StoreError(
            f"{folder} is not shared as the store's root is: {owner(found.st_uid)} has to submit"
            f" something once, or to run `chmod 3770 {folder}`"
        )
    os.chown(folder, -1, gid)
    if folder.name in ("ledger", "models"):  # who has which ids and names is everybody's to know
        for fact in folder.iterdir():
            os.chown(fact, -1, gid)
            fact.chmod(0o640)
    folder.chmod(access.COMMON_DIRECTORY)  # last: from now on others may add to it, links too
    access.clear_cache()


def owner(uid: int) -> str:
    """A user by name, where the name is known."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def group(gid: int) -> str:
    """A group by name, where the name is known."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _is_own_group(gid: int) -> bool:
    """Whether a group is a user's private group, as many systems make it, without other members."""
    me = owner(os.geteuid())
    try:
        found = grp.getgrgid(gid)
    except KeyError:
        return False
    return found.gr_name == me and set(found.gr_mem) <= {me}
