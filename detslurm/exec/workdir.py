"""The working directory of a run on a node: a private copy of the frozen code on local disk.

Code may write next to itself, as it could in Determined's containers; trials never see each other's
files, and the shared file system is spared the import storm. TMPDIR may lie on a shared file
system all the same: names tell whose they are, and nobody removes what may be another node's.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from detslurm._process import Identity

_PREFIX = f"detslurm-{os.getuid()}-"


def make_workdir(code: Path, label: str, *, tmp: Path) -> Path:
    """Copy `code` to a new directory under `tmp`. Raises `OSError` when there is no room."""
    _sweep(tmp)
    path = tmp / f"{_PREFIX}{Identity.own()}-{label}"
    path.mkdir(mode=0o700)
    try:
        shutil.copytree(code, path, symlinks=True, dirs_exist_ok=True)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path


def remove_workdir(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _sweep(tmp: Path) -> None:
    """Remove what killed agents of this node have left."""
    for stale in tmp.glob(f"{_PREFIX}*"):
        owner = Identity.parse(stale.name.removeprefix(_PREFIX))
        if owner is not None and owner.is_dead():
            shutil.rmtree(stale, ignore_errors=True)
