"""Where a local cluster lives: one per user, store root and machine."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from detslurm._base import access

_MOST_ADDRESSES = 1000


@dataclass(frozen=True, slots=True)
class LocalClusterPaths:
    """The files and the address of one local cluster."""

    root: Path

    @property
    def _local(self) -> Path:
        return self.root / access.own_name(str(self.root), "local")

    def make(self) -> None:
        """Let the directories exist, for their user alone."""
        for folder in (self._local, self.jobs, self.home.parent, self.home):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def jobs(self) -> Path:
        """Job ids are claimed here by mkdir, for all machines that share the store."""
        return self._local / "jobs"

    def script(self, job: int) -> Path:
        """The batch script of a job that is not over."""
        return self.jobs / str(job) / "batch.sh"

    def environment(self, job: int) -> Path:
        """The environment of the shell that submitted a job, until the job is over."""
        return self.jobs / str(job) / "environment.json"

    def output(self, job: int) -> Path:
        """The file that Slurm's part of the output goes to: early lines, and why the job ends."""
        return self.jobs / str(job) / "output"

    def forget(self, job: int) -> None:
        """Remove what only a job that may run needs: it may hold secrets. Its id stays taken."""
        for path in (self.environment(job), self.script(job), self.output(job)):
            with suppress(OSError):
                path.unlink()

    @property
    def home(self) -> Path:
        """Files that only this machine's scheduler writes."""
        return self._local / "hosts" / machine()

    @property
    def journal(self) -> Path:
        """All that happened to this machine's jobs."""
        return self.home / "journal.jsonl"

    @property
    def lock(self) -> Path:
        """Held by the one scheduler that works on the journal."""
        return self.home / "lock"

    @property
    def log(self) -> Path:
        """The scheduler's own troubles."""
        return self.home / "scheduler.log"

    @property
    def tag(self) -> str:
        """Marks every process of this cluster, in its environment."""
        key = f"{os.getuid()}:{machine()}:{self.root.resolve()}"
        return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:24]

    @property
    def address(self) -> str:
        """An abstract socket: no file to be left behind, and only one process can own it."""
        return f"\0detslurm-{os.getuid()}-{self.tag}{self._key()}"

    def leave_address(self, taken: str) -> None:
        """Choose another address, where another user has taken this one.

        The name of an abstract socket can be guessed, and is seen by all while it is in use. The
        next name is random, and of clients that choose at once all take the first one's.
        """
        number = len(self._keys()) + 1
        if self.address == taken and number < _MOST_ADDRESSES:
            self.make()
            key = secrets.token_hex(8)
            draft = self.home / f".address-{key}"
            draft.write_text(key)
            with suppress(OSError):  # another client was faster
                os.link(draft, self.home / f"address-{number}")
            draft.unlink()

    def _keys(self) -> list[Path]:
        return sorted(self.home.glob("address-*"), key=lambda path: int(path.name[8:]))

    def _key(self) -> str:
        keys = self._keys()
        return f"-{keys[-1].read_text()}" if keys else ""


def machine() -> str:
    """The same after a reboot, and different on hosts that share a name and a home directory."""
    host = socket.gethostname()
    try:
        number = Path("/etc/machine-id").read_bytes().strip()
    except OSError:
        number = b""
    return f"{host}-{hashlib.sha256(number).hexdigest()[:8]}" if number else host
