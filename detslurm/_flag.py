"""The preemption flag of a node: one page of memory that its agent and its ranks share.

The agent holds an anonymous file (nothing to clean up, whatever is killed) and hands its name under
``/proc`` to everything it starts; looking at the flag costs a rank one memory read, no system call.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from typing import Self

ENV = "DETSLURM_PREEMPT_FLAG"

_PREEMPT, _ACKNOWLEDGED, _EARLY_EXIT, _STOP, _OWNED = 0, 1, 2, 3, 4
_SIZE = mmap.PAGESIZE
# The agent gets Slurm's SIGTERM at the same moment as everybody else and raises the flag at once.
_DELAY = 0.5
_made: set[tuple[int, int]] = set()  # by this process


class PreemptFlag:
    """One-way bits: preempt, its acknowledgement, an early exit reported, the search says stop."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._page = mmap.mmap(fd, _SIZE)

    @classmethod
    def create(cls) -> Self:
        """Make the flag of this node; the caller keeps it alive as long as ranks may look."""
        fd = os.memfd_create("detslurm-preempt")
        os.ftruncate(fd, _SIZE)
        flag = cls(fd)
        flag._own()
        return flag

    def _own(self) -> None:
        """Hold a lock as long as this process lives: the kernel lets go of it, whatever happens."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        self._page[_OWNED] = 1
        _made.add(self._file)

    @property
    def _file(self) -> tuple[int, int]:
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    def outlive_owner(self) -> bool:
        """Wait until the process that made the flag is gone; False where that can't be seen."""
        if not self._page[_OWNED] or self._file in _made:
            return False
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        except OSError:
            return False
        return True

    @classmethod
    def attach(cls, name: str) -> Self:
        """Open the flag that an agent made. Raises `OSError` when that agent is gone."""
        fd = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        return cls(fd)

    @property
    def name(self) -> str:
        """Where other processes of this user find the flag while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @property
    def preempt(self) -> bool:
        return self._page[_PREEMPT] != 0

    def explains_signal(self) -> bool:
        """Whether a SIGTERM that has just come is a preemption's; gives the agent a moment."""
        deadline = time.monotonic() + _DELAY
        while not self.preempt and time.monotonic() < deadline:
            time.sleep(0.01)  # a look at shared memory: nothing to wait on
        return self.preempt

    def request_preemption(self) -> None:
        self._page[_PREEMPT] = 1

    @property
    def acknowledged(self) -> bool:
        return self._page[_ACKNOWLEDGED] != 0

    def acknowledge(self) -> None:
        self._page[_ACKNOWLEDGED] = 1

    @property
    def early_exit(self) -> bool:
        return self._page[_EARLY_EXIT] != 0

    def report_early_exit(self) -> None:
        self._page[_EARLY_EXIT] = 1

    @property
    def stop(self) -> bool:
        return self._page[_STOP] != 0

    def request_stop(self) -> None:
        self._page[_STOP] = 1

    def close(self) -> None:
        self._page.close()
        os.close(self._fd)
