"""The working directory of a run on a node: a private copy of the frozen code on local disk.

Code may write next to itself, as it could in Determined's containers; trials never see each other's
files, and the shared file system is spared the import storm. TMPDIR may lie on a shared file
system all the same: names show whose they are, and nobody removes what may be another node's.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from detslurm._node_files import own_name, sweep


def make_workdir(code: Path, label: str, *, tmp: Path) -> Path:
    """Copy `code` to a new directory under `tmp`. Raises `OSError` when there is no room."""
    sweep(tmp)
    path = tmp / own_name(label)
    path.mkdir(mode=0o700)
    try:
        shutil.copytree(code, path, symlinks=True, dirs_exist_ok=True)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path


def remove_workdir(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
