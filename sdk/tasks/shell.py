"""Shells: how a shell is started, found, and opened from this machine or from a laptop."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from detslurm._base.access import as_owner_of, user_name
from detslurm._base.ssh_client import CONFIG, SESSION, ShellHost, host_alias
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.tasks.waiting import address_of, step_beside

if TYPE_CHECKING:
    from detslurm.sdk.tasks.task import Task
    from detslurm.store import Address

_LAPTOP_FOLDER: Final = "~/.ssh"


@dataclass(frozen=True)
class Shell:
    """A shell that runs, as its user reaches it; `has_srun` if Slurm runs its job."""

    task: int
    address: Address
    has_srun: bool = True

    @classmethod
    def of(cls, task: Task) -> Shell:
        """Return the shell of a task, as the task was read last. Raises `LifecycleError` if it has
        ended, or takes no sessions yet."""
        if task.is_over:
            forget_keys(task)
        address = address_of(task)
        return cls(task.id, address, task.experiment.view.jobs[-1].cluster != "local")

    @property
    def _folder(self) -> Path:
        return Path(self.address.key or "")

    def open_command(self, options: Sequence[str] = ()) -> list[str]:
        """Return the command of a session on this machine; `options` are more words for `ssh`,
        which forward ports or name a command. Raises `LifecycleError` if the job has no sshd, and
        srun can't take its place."""
        has_ssh, problem = self.address.port is not None, self.address.problem
        if has_ssh and (options or not problem or not self.has_srun):
            return ["ssh", "-F", str(self._folder / CONFIG), host_alias(self.task), *options]
        if options:
            raise LifecycleError(f"{problem}: srun takes no options of ssh")
        if not self.has_srun or shutil.which("srun") is None:
            raise LifecycleError(f"{problem}: install OpenSSH's server")
        return [*step_beside(self.address), "--pty", "sh", str(self._folder / SESSION)]

    def laptop(self, login: str) -> ShellHost:
        """Return the shell as a laptop sees it, through `USER@HOST` of the login node. Raises
        `LifecycleError` if the job has no sshd."""
        if self.address.port is None:
            raise LifecycleError(
                f"{self.address.problem}. On the login node `detslurm shell open {self.task}`"
                " opens a session with srun"
            )
        folder = f"{_LAPTOP_FOLDER}/{host_alias(self.task)}"
        host, port = self.address.host, self.address.port
        return ShellHost(self.task, host, port, user_name(), folder, login)

    def laptop_command(self, login: str) -> list[str]:
        """Return the one command with which a laptop opens a session."""
        if self.address.port is None:
            return ["ssh", "-t", login, shlex.join(self.open_command())]
        return self.laptop(login).command()

    def fetch_command(self, login: str) -> str:
        """Return the command that copies the keys to a laptop."""
        return f"scp -rp {shlex.quote(f'{login}:{self._folder}')} {_LAPTOP_FOLDER}/"


def login_node(env: Mapping[str, str] = os.environ) -> str:
    """Return `USER@HOST` of this machine; in a job, of the login node."""
    host = env.get("SLURM_SUBMIT_HOST") if "SLURM_JOB_ID" in env else None
    return f"{user_name()}@{host or socket.gethostname()}"


def forget_keys(task: Task) -> None:
    """Remove the keys of a shell that has ended: a killed shell could not do it."""
    trial = task.trial.directory
    with as_owner_of(os.fspath(trial.experiment_path)):
        shutil.rmtree(trial.path / host_alias(task.id), ignore_errors=True)
