"""How OpenSSH's clients reach a shell in a job: the text of their configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

KEY, KNOWN_HOSTS, CONFIG = "key", "known_hosts", "config"
"""The files in the directory of a shell's clients, which has the name of the host alias."""
SESSION = "session"
"""A script there, which begins a session for `srun --pty sh`."""

_USERS_OWN = "Match all\n    Include ~/.ssh/config\n    Include /etc/ssh/ssh_config\n"


def host_alias(task: int) -> str:
    """The name of a shell for `ssh`, of its pinned host key, and of the directory of its keys."""
    return f"detslurm-shell-{task}"


@dataclass(frozen=True)
class ShellHost:
    """An sshd in a job, as a client sees it."""

    task: int  # the id of the shell
    host: str
    port: int  # the port of the node
    user: str  # the user whose job it is
    folder: str  # the directory of the shell's keys on the client's machine
    login: str | None = None  # `USER@HOST` of the login node, for clients outside of the cluster

    def block(self) -> str:
        """Return the block of an ssh_config; the options of a command line mean the same."""
        lines = (f"    {name} {value}\n" for name, value in self._settings())
        return f"Host {host_alias(self.task)}\n{''.join(lines)}"

    def config(self) -> str:
        """Return a whole ssh_config: the block comes first, so that it wins over the user's own."""
        return self.block() + _USERS_OWN

    def command(self) -> list[str]:
        """Return an ssh command that needs no ssh_config."""
        options = (word for name, value in self._settings() for word in ("-o", f"{name}={value}"))
        return ["ssh", *options, host_alias(self.task)]

    def _settings(self) -> Iterator[tuple[str, str]]:
        yield "HostName", self.host
        yield "Port", str(self.port)
        yield "User", self.user
        if self.login is not None:
            yield "ProxyJump", self.login
        yield "IdentityFile", self._path(KEY)
        yield "IdentitiesOnly", "yes"
        yield "PreferredAuthentications", "publickey"
        yield "HostKeyAlias", host_alias(self.task)
        yield "UserKnownHostsFile", self._path(KNOWN_HOSTS)
        yield "StrictHostKeyChecking", "yes"

    def _path(self, name: str) -> str:
        path = f"{self.folder}/{name}".replace("%", "%%")
        return f'"{path}"' if " " in path else path
