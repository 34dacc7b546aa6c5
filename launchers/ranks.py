"""Shared by a launcher and its wrapped workers on one node: preemption, and how workers ended.

The exit log is a file that the launcher makes, because launchers in between (torchrun) close what
workers would inherit and report every failure as 1. So the launcher knows which worker failed
first, and exits with that one's status.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
from functools import cache
from pathlib import Path

from detslurm._base import contract
from detslurm._base.flag import PreemptFlag
from detslurm._base.node_files import create, create_at

_ASKED_TO_END = 128 + signal.SIGTERM
# A whole line: a full disk may tear a line, and the next line then stands behind its rest.
_LINE = re.compile(rb"^\d+ (\d+)\n", re.MULTILINE)


def has_flag() -> bool:
    """Whether this process belongs to a run of a job."""
    return contract.PREEMPT_FLAG in os.environ


def is_preemption() -> bool:
    """Whether Slurm has sent the SIGTERM that just came to all processes of the step."""
    # The signal itself does not show it: torchrun sends SIGTERM to workers, too, when a peer fails.
    # But the agent gets Slurm's at the same moment and raises the flag.
    try:
        flag = _flag()
    except RuntimeError:
        return False  # it was there when this process began: the agent has gone
    return flag is not None and flag.explains_signal()


def check_flag() -> None:
    """Raises `RuntimeError` where this process could not learn of a preemption."""
    contract.drop_inherited_run(os.environ)  # sbatch hands on the flag of another job
    _flag()


@cache
def _flag() -> PreemptFlag | None:
    """Kept open: what lies in /tmp for long may be tidied up while the run goes on."""
    return PreemptFlag.of_this_node()


def file_for_ranks(label: str) -> tuple[int, Path]:
    """A new file that the ranks of this node find as long as this process lives."""
    flag = os.environ.get(contract.PREEMPT_FLAG)
    # Beside the flag every rank finds it, also in another container than the launcher's.
    fd, path = create_at(Path(flag), 0) if flag else create(label, 0)
    atexit.register(path.unlink, missing_ok=True)
    return fd, path


def report_exit(rank: int, status: int) -> None:
    """Report to the launcher how this worker ended, and a failure to the agent."""
    # Without an agent, or a disk that takes it, the failure stays unknown and the end its own.
    with contextlib.suppress(OSError, RuntimeError):
        if status not in (0, _ASKED_TO_END) and (flag := _flag()) is not None:
            flag.report_failure(status)
    name = os.environ.get(contract.EXIT_LOG)
    if name is None:
        return
    # The launcher may be gone, so that none reads, or the disk full. The worker's own end must
    # not become another end for that: the launcher then goes by the exit status of what it started.
    with contextlib.suppress(OSError):
        fd = os.open(name, os.O_WRONLY | os.O_APPEND)
        try:
            # One short write with O_APPEND: lines of workers that end in the same moment don't mix.
            os.write(fd, b"%d %d\n" % (rank, status))
        finally:
            os.close(fd)


class ExitLog:
    """How the workers of this node ended, in the order of their ends."""

    def __init__(self) -> None:
        self._fd, self._path = file_for_ranks("exits")

    @property
    def name(self) -> str:
        """Where workers find it while this process lives."""
        return str(self._path)

    def first_failure(self) -> int | None:
        """The exit status of the worker that failed first, and not because it was asked to end.

        When a worker calls MPI_Abort, mpirun asks the others before that worker has ended.
        """
        lines = _LINE.findall(os.pread(self._fd, 1 << 20, 0))
        failed = [status for line in lines if (status := int(line))]
        by_itself = [status for status in failed if status != _ASKED_TO_END]
        return next(iter(by_itself or failed), None)
