"""The working directory of a run on a node: a private copy of the frozen code on local disk.

Code may write next to itself, as it could in Determined's containers; trials never see each other's
files, and the shared file system is spared the import storm.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_PREFIX = f"detslurm-{os.getuid()}-"


def make_workdir(code: Path, label: str, *, tmp: Path) -> Path:
    """Copy `code` to a new directory under `tmp`. Raises `OSError` when there is no room."""
    _sweep(tmp)
    path = tmp / f"{_PREFIX}{os.getpid()}-{label}"
    shutil.rmtree(path, ignore_errors=True)
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
    # What a killed agent left: its process id is in the name, and pids are those of this node.
    for stale in tmp.glob(f"{_PREFIX}*"):
        pid = stale.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(stale, ignore_errors=True)
