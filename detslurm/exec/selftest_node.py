"""A task of `detslurm selftest`'s job: find the facts of this node, and print them as a line.

`python -m detslurm.exec.selftest_node FOLDER` tries FOLDER, the node's disk, its clock and Slurm.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from detslurm.slurm import SlurmError, command
from detslurm.store.selftest_facts import NodeFacts

MARK: Final = "detslurm-selftest-facts "
"""So begins the line with the facts: a site's TaskProlog may print others."""

_MEGABYTE: Final = b"\0" * (1 << 20)
_SECONDS: Final = 20.0


def node_facts(folder: Path) -> NodeFacts:
    """All facts of this node."""
    now = time.time()
    store, owner = _store(folder)
    tmp = Path(os.environ.get("TMPDIR") or "/tmp")
    free, problem, executes = _disk(tmp)
    return NodeFacts(
        time=now,
        utc_offset=_utc_offset(),
        store=store,
        owner=owner,
        tmp=str(tmp),
        tmp_free=free,
        tmp_problem=problem,
        tmp_exec=executes,
        controller=_controller(),
    )


def _store(folder: Path) -> tuple[str | None, int | None]:
    """Why the store can't be used, and the owner of a new file there."""
    path = folder / f"node-{os.uname().nodename}-{os.getpid()}"
    try:
        path.write_bytes(b"")
        owner = path.stat().st_uid
        path.unlink()
    except OSError as error:
        return f"{error.filename}: {error.strerror}", None
    return None, owner


def _disk(tmp: Path) -> tuple[int | None, str | None, bool | None]:
    """Free bytes, why a megabyte can't be written, and whether a program can be started."""
    try:
        state = os.statvfs(tmp)
        free = state.f_bavail * state.f_frsize
    except OSError as error:
        return None, f"{tmp}: {error.strerror}", None
    try:
        with tempfile.TemporaryDirectory(prefix="detslurm-selftest-", dir=tmp) as folder:
            (Path(folder) / "data").write_bytes(_MEGABYTE)
            return free, None, _executes(Path(folder) / "program")
    except OSError as error:
        return free, f"{tmp}: {error.strerror}", None


def _executes(program: Path) -> bool:
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o700)
    try:
        return subprocess.run([program], check=False, timeout=_SECONDS).returncode == 0
    except PermissionError:
        return False


def _utc_offset() -> int:
    """That of the node, not that of a TZ which the job brings along."""
    os.environ.pop("TZ", None)
    time.tzset()
    return time.localtime().tm_gmtoff


def _controller() -> str | None:
    """Why the controller does not answer: runners ask it for requeues from here."""
    job = os.environ.get("SLURM_JOB_ID", "")
    try:
        command.run(["scontrol", "--oneliner", "show", "job", job], patience=0, within=_SECONDS)
    except SlurmError as error:
        return error.message
    return None


def main(folder: Path) -> None:
    """Print the facts."""
    print(MARK + msgspec.json.encode(node_facts(folder)).decode(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
