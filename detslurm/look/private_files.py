"""Places on this machine that are their user's alone: for a socket, and for a token."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_LONGEST_SOCKET: Final = 107  # bytes of a Unix socket's path
_LONGEST_NAME: Final = len("/ui-0123456789ab.sock")


def private_directory(environ: Mapping[str, str]) -> Path:
    """Return a directory of this machine for this user alone, made if it is missing.

    It is the same at each call, so that a tunnel to a socket in it outlives the server: below
    XDG_RUNTIME_DIR if that is ours alone, else in the directory for temporary files; where another
    user has taken our name there, a new one. Raises `OSError` if none can be made.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and is_private(Path(runtime)):
        parent, name = Path(runtime), "detslurm"
    else:
        parent, name = Path(tempfile.gettempdir()), f"detslurm-{os.getuid()}"
    if len(os.fsencode(parent / name)) + _LONGEST_NAME > _LONGEST_SOCKET:
        parent, name = Path("/tmp"), f"detslurm-{os.getuid()}"
    path = parent / name
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    return path if is_private(path) else Path(tempfile.mkdtemp(prefix="detslurm-", dir=parent))


def socket_name(store: Path) -> str:
    """Return the name of the socket through which a store is shown, the same at each call."""
    return f"ui-{hashlib.sha256(os.fsencode(os.path.realpath(store))).hexdigest()[:12]}.sock"


def is_private(path: Path) -> bool:
    """Return whether a directory is ours, closed to other users; a link is not."""
    try:
        status = path.lstat()
    except OSError:
        return False
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return ours and status.st_mode & 0o077 == 0


def new_token(path: Path) -> str:
    """Write a new secret to a file that only its user may read, and return it.

    A program that takes the port of an ended server gets the cookie from a page that is still open:
    the cookie must be worth nothing for the next server. Raises `OSError` if the file can't be
    written, or belongs to another user.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "r+") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{path} is not a file of ours")
        os.fchmod(file.fileno(), 0o600)
        token = secrets.token_hex(24)
        file.truncate()
        file.write(token)
        return token
