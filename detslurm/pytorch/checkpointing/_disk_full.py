"""Full disks and quotas: torch and shutil don't report them, and training can go on."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from detslurm.store.errors import FULL, explained

_PROBE = 1 << 20
_OF_TORCH = ("PytorchStreamWriter", "unexpected pos", "open file failed", "basic_ios::clear")


def is_full(error: BaseException) -> bool:
    """Whether space, inodes or a quota ran out; they may come back."""
    return isinstance(error, OSError) and error.errno in FULL


@contextmanager
def explaining_full_disk(file: Path) -> Iterator[None]:
    """Raise the file system's error when writing fails, an `OSError` with its path and reason.

    Torch raises "unexpected pos" and shutil a list: one more write to the file finds the cause.
    """
    try:
        yield
    except OSError as err:
        if is_full(err):
            # Of two names the second was written to.
            raise explained(err, err.filename2 or err.filename or str(file)) from err
        if isinstance(err, shutil.Error):
            _try_again(file, err)
        raise
    except Exception as err:
        _try_again(file, err)
        raise


@contextmanager
def faults_of_torch(file: Path) -> Iterator[None]:
    """Raise an `OSError` where torch can't write a file: its own errors have no number."""
    try:
        yield
    except RuntimeError as err:
        first = (str(err).splitlines() or [""])[0]
        if not any(text in first for text in _OF_TORCH):
            raise
        _try_again(file, err)  # a full disk is another error
        raise OSError(errno.EIO, first, str(file)) from err


def _try_again(file: Path, error: Exception) -> None:
    try:
        with file.open("ab") as out:
            out.write(bytes(_PROBE))
            out.flush()
            os.fsync(out.fileno())
    except OSError as cause:
        raise explained(cause, str(file)) from error
