"""Temporary directories that the ranks of a node share."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from detslurm._base.node_files import own_name
from detslurm.core._collective import run_collectively
from detslurm.core._distributed import DistributedContext


@contextlib.contextmanager
def shared_directory(dist: DistributedContext) -> Iterator[Path]:
    """A temporary directory that the ranks of a node share; removed when all have left it."""
    path = made_for_node(dist)
    try:
        yield path
    finally:
        with contextlib.suppress(Exception):  # others may be gone already
            dist.gather_local(None)
        if dist.local_rank == 0:
            shutil.rmtree(path, ignore_errors=True)


def made_for_node(dist: DistributedContext) -> Path:
    """A temporary directory that the ranks of a node share; a collective of these."""
    path = run_collectively(
        dist,
        lambda: Path(tempfile.mkdtemp(prefix=own_name(""))) if dist.local_rank == 0 else None,
        lambda paths: paths[0],
        local=True,
    )
    assert path is not None
    return path
