"""Takes a cluster down when the process that owns it ends, however it ends."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.cluster import processes
from tests.cluster.cluster import PREFIX, Cluster

REPOSITORY = Path(__file__).resolve().parents[2]
START = "import sys; from tests.cluster.watchdog import watch; watch(sys.argv[1], int(sys.argv[2]))"


@contextlib.contextmanager
def guarded(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, up; gone afterwards even if this process is killed outright."""
    sweep()
    pid = os.getpid()
    cluster.root.mkdir(exist_ok=True)
    (cluster.root / "owner").write_text(f"{pid} {processes.birth(pid)}")
    argv = [sys.executable, "-c", START, str(cluster.root), str(pid)]
    # A session of its own: the Ctrl-C that ends the owner must not end the watchdog.
    with subprocess.Popen(argv, cwd=REPOSITORY, start_new_session=True) as watchdog:
        try:
            with cluster:
                yield cluster
        finally:
            watchdog.terminate()


def sweep() -> None:
    """Take down what dead owners have left, where not even the watchdog survived."""
    for folder in {Path(tempfile.gettempdir()), Path("/tmp")}:
        for root in folder.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                if root.stat().st_uid == os.geteuid() and not owner_alive(root):
                    take_down(root)


def owner_alive(root: Path) -> bool:
    """Whether the owner of the cluster in `root` lives; one without an owner stands by itself."""
    try:
        pid, birth = (root / "owner").read_text().split()
    except (OSError, ValueError):
        return True
    return processes.alive(int(pid)) and processes.birth(int(pid)) == birth


def take_down(root: Path) -> None:
    """End the cluster in `root`, or remove the folder of one that never began."""
    try:
        cluster = Cluster.attach(root)
    except (OSError, ValueError, KeyError):
        shutil.rmtree(root, ignore_errors=True)
    else:
        cluster.down()


def watch(root: str, owner: int) -> None:
    """Wait for the end of process `owner`, then take the cluster down."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(owner)
        select.select([handle], [], [])
    take_down(Path(root))
