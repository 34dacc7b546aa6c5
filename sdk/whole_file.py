"""A file that the user has named: written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from detslurm.sdk.errors import LifecycleError


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Yield an empty draft beside `target`, which takes that name once the block is done.

    An older file of that name is replaced, also where a link of the user's leads to it, and its
    mode stays. The draft goes away if the block raises. Raises `LifecycleError` if something other
    than a file, or a link of another user, has that name; `OSError`, with the target, if it can't
    be written.
    """
    if target.is_symlink() and target.lstat().st_uid != os.geteuid():  # in /tmp, it may lead home
        raise LifecycleError(f"{target} is another user's link: nothing was written")
    target = Path(os.path.realpath(target))
    if target.exists() and not target.is_file():
        raise LifecycleError(f"{target} is not a file: nothing was written")
    draft = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        mode = target.stat().st_mode & 0o777 if target.exists() else None
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if mode else 0o666))
        try:
            yield draft
            if mode:
                draft.chmod(mode)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as err:
        if str(err.filename or draft) != str(draft):
            raise  # of a file that the block reads
        raise OSError(err.errno, err.strerror, str(target)) from err
