"""The preemption flag of a node: a small file that its agent and its ranks have mapped.

It lies on the node's own disk, so that ranks in containers see it too; looking at it costs a rank
one memory read, no system call. Bytes are set by writing: a full disk can't kill the writer.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import mmap
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from detslurm._base import contract

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Any of these means: save and exit; sbatch's --signal may name any of them."""

_PREEMPT, _ACKNOWLEDGED, _EARLY_EXIT, _STOP, _OWNED, _FAILURE = 0, 1, 2, 3, 4, 5
_SIZE = mmap.PAGESIZE
# The agent gets Slurm's SIGTERM at the same moment as everybody else and raises the flag at once;
# in seconds, where its node is crowded or has swapped it out.
# Twice, by a rank and by what passes its signals on, it is less than what launchers give a rank.
_DELAY, _LONGEST_DELAY = 0.5, 2.0
_made: set[Path] = set()  # by this process


class PreemptFlag:
    """One-way bits: preempt, its acknowledgement, an early exit, the search's order to stop; and
    how the first worker failed."""

    def __init__(self, fd: int, path: Path, *, owner: int | None = None) -> None:
        self._fd, self._path, self._owner = fd, path, owner
        self._page = mmap.mmap(fd, _SIZE, prot=mmap.PROT_READ)

    @classmethod
    def create(cls) -> Self:
        """Make the flag of this node; gone with this process. Raises `OSError` without room."""
        from detslurm._base import node_files  # only here: ranks need none of it

        fd, path = node_files.create("flag", _SIZE)
        node_files.sweep(path.parent)
        flag = cls(fd, path, owner=os.getpid())
        atexit.register(flag._remove)
        flag._own()
        return flag

    def _own(self) -> None:
        """Hold a lock as long as this process lives: the kernel lets go of it, whatever happens."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        self._set(_OWNED)
        _made.add(self._path)

    def outlive_owner(self) -> bool:
        """Wait until the process that made the flag is gone; False where that can't be seen."""
        if not self._page[_OWNED] or self._path in _made:
            return False
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        except OSError:
            return False
        return True

    @classmethod
    def attach(cls, name: str) -> Self:
        """Open the flag that an agent made. Raises `OSError` when it is gone or out of sight."""
        fd = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(fd).st_uid != os.geteuid():
                raise PermissionError(f"{name} is another user's")
            return cls(fd, Path(name))
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def of_this_node(cls) -> Self | None:
        """The flag of this node's agent, or None outside a job. Raises `RuntimeError`."""
        name = os.environ.get(contract.PREEMPT_FLAG)
        if name is None:
            return None
        try:
            return cls.attach(name)
        except (OSError, ValueError) as err:
            raise RuntimeError(
                f"the preemption flag of this node's agent can't be opened ({err}): a container"
                f" must see {Path(name).parent} of the host under the same path, and may write"
                " there; ranks on other nodes are to be started by detslurm.launch.mpi, not by an"
                " mpirun of your own; without it a preemption would lose unsaved work"
            ) from err

    @property
    def name(self) -> str:
        """Where other processes of this user find the flag while this process lives."""
        return str(self._path)

    @property
    def preempt(self) -> bool:
        return self._page[_PREEMPT] != 0

    def explains_signal(self) -> bool:
        """Whether a SIGTERM that has just come is a preemption's; waits for the agent's flag.

        Just a moment where the agent is gone, or a worker has failed: launchers end the others by
        this signal, too.
        """
        came = time.monotonic()
        while not self.preempt:
            waited = time.monotonic() - came
            if waited > (_LONGEST_DELAY if self._owner_lives() and not self.failure else _DELAY):
                return False
            time.sleep(0.01)  # shared memory: nothing to wait on
        return True

    def _owner_lives(self) -> bool:
        """Whether another process made the flag and lives; False where that can't be seen."""
        if not self._page[_OWNED] or self._path in _made:
            return False
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def request_preemption(self) -> None:
        self._set(_PREEMPT)

    @property
    def acknowledged(self) -> bool:
        return self._page[_ACKNOWLEDGED] != 0

    def acknowledge(self) -> None:
        self._set(_ACKNOWLEDGED)

    def spare_at_exit(self) -> None:
        """Let no preemption's signal kill this process at its end, once its node has acknowledged.

        Python gives its handlers up before MPI and CUDA end; and Slurm's signal may reach a node
        when ranks there have long left by the word of another node.
        """

        def ignore() -> None:
            if self.acknowledged:
                ignore_signals()

        atexit.register(ignore)

    @property
    def early_exit(self) -> bool:
        return self._page[_EARLY_EXIT] != 0

    def report_early_exit(self) -> None:
        self._set(_EARLY_EXIT)

    @property
    def stop(self) -> bool:
        return self._page[_STOP] != 0

    @property
    def is_to_leave(self) -> bool:
        """Whether there is a preemption, or the search's order to stop."""
        page = self._page
        return page[_PREEMPT] != 0 or page[_STOP] != 0

    def request_stop(self) -> None:
        self._set(_STOP)

    @property
    def failure(self) -> int:
        """The exit status of the first worker of this node that failed by itself, or 0."""
        return self._page[_FAILURE]

    def report_failure(self, status: int) -> None:
        if not self.failure:
            os.pwrite(self._fd, bytes([status]), _FAILURE)

    def close(self) -> None:
        """Close it; its maker removes it."""
        self._page.close()
        os.close(self._fd)
        self._remove()
        atexit.unregister(self._remove)

    def _set(self, place: int) -> None:
        os.pwrite(self._fd, b"\1", place)

    def _remove(self) -> None:
        if self._owner != os.getpid():  # a process that it has forked
            return
        # The directory may not be listed, or may be gone with the job's temporary files.
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
            for path in self._path.parent.iterdir():
                if path.name.startswith(self._path.name):  # what launchers put beside
                    path.unlink(missing_ok=True)


def ignore_signals() -> None:
    """Ignore a preemption's signals from now on, in all threads and to the end of this process."""
    for number in SIGNALS:
        faulthandler.unregister(number)  # it would restore the earlier handler at the end
        signal.signal(number, signal.SIG_IGN)
