"""The preemption flag of a node: one page of memory that its agent and its ranks share.

The agent holds an anonymous file (nothing to clean up, whatever is killed) and hands its name under
``/proc`` to everything it starts; looking at the flag costs a rank one memory read, no system call.
"""

from __future__ import annotations

import mmap
import os
import time
from typing import Self

ENV = "DETSLURM_PREEMPT_FLAG"

_PREEMPT, _ACKNOWLEDGED, _EARLY_EXIT, _STOP = 0, 1, 2, 3
_SIZE = mmap.PAGESIZE
# The agent gets Slurm's SIGTERM at the same moment as everybody else and raises the flag at once.
_DELAY = 0.5


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
        return cls(fd)

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
