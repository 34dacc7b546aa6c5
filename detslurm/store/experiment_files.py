"""Open files of an experiment that may be another user's, to show their content."""

from __future__ import annotations

import os
from io import BufferedReader

from detslurm._base import access
from detslurm.store import fs
from detslurm.store.errors import CorruptRecord


def open_shown(path: fs.AnyPath, experiment: fs.AnyPath) -> BufferedReader:
    """Open a file for reading, if its content is the experiment's own.

    In a shared store an experiment's owner can put links in the place of files and of directories.
    They may lead to what the reader alone, or the reader's group, may read. Raises `CorruptRecord`
    for such a file, and `OSError`.
    """
    handle = fs.open_regular(os.fspath(path))
    try:
        owner, uid = fs.owner_of(experiment, follow=False), os.fstat(handle).st_uid
        trusted = {owner, *access.UNKNOWN_OWNERS} - ({0} if owner else set())
        if os.geteuid() != owner and owner not in access.UNKNOWN_OWNERS and uid not in trusted:
            raise CorruptRecord(f"{path} is a file of another user's: it is not shown")
    except BaseException:
        fs.close_quietly(handle)
        raise
    return os.fdopen(handle, "rb")
