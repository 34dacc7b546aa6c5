"""The working directory of a run on a node: a private copy of the frozen code on local disk.

Code may write next to itself, as it could in Determined's containers; trials never see each other's
files, and the shared file system is spared the import storm. TMPDIR may lie on a shared file
system all the same: names show their node, and a node removes only its own.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE

from detslurm._base.node_files import own_name, remove, sweep
from detslurm.store.fs import write_all

_AT_ONCE = 1 << 20


def make_workdir(code: Path, label: str, *, tmp: Path) -> Path:
    """Copy `code` to a new directory under `tmp`. Raises `OSError` when there is no room."""
    if sweep(tmp):
        from detslurm.exec.staging import remove_forgotten  # only here: others pay nothing

        remove_forgotten(tmp)
    path = tmp / own_name(label)
    path.mkdir(mode=0o700)
    try:
        _copy_tree(code, path)
    except BaseException:
        remove(path)
        raise
    return path


def top_names(workdir: Path) -> set[str]:
    """Names in it that are not hidden or made by Python; names of folders end with a slash. Empty
    where they can't be known: the code may have removed or closed it."""
    with suppress(OSError), os.scandir(workdir) as entries:
        found = [e for e in entries if not e.name.startswith((".", "__pycache__"))]
        return {f"{e.name}/" if e.is_dir(follow_symlinks=False) else e.name for e in found}
    return set()


def written_names(workdir: Path, copied: Collection[str]) -> str | None:
    """Names of what the code has written beside itself, ten at most; None if it wrote nothing.

    An empty directory is no loss: `bind_mounts` leave such places.
    """
    found = sorted(top_names(workdir).difference(copied))
    names = [name for name in found if not _is_empty_directory(workdir / name)]
    more = f" and {len(names) - 10} more" if names[10:] else ""
    return f"{', '.join(names[:10])}{more}" if names else None


def _is_empty_directory(path: Path) -> bool:
    try:
        return not any(path.iterdir())
    except OSError:
        return False


def _copy_tree(source: str | Path, target: Path) -> None:
    # One call on a shared path for each file: shutil makes four, and needs a dozen modules.
    with os.scandir(source) as entries:
        for entry in entries:
            copy = target / entry.name
            if entry.is_symlink():
                copy.symlink_to(Path(entry.path).readlink())
            elif entry.is_dir():
                copy.mkdir()
                _copy_tree(entry.path, copy)
                copy.chmod(S_IMODE(entry.stat().st_mode))
            else:
                _copy_file(entry.path, copy)


def _copy_file(source: str, target: Path) -> None:
    """With mode and times: compiled modules belong to sources of that very time."""
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(reader)
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while data := os.read(reader, _AT_ONCE):
                write_all(writer, data)
            os.fchmod(writer, S_IMODE(status.st_mode))
            os.utime(writer, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(writer)
    finally:
        os.close(reader)
