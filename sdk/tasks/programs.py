"""The programs of the jobs of shells and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detslurm.sdk.tasks.document import TaskDocument


def shell_entrypoint(document: TaskDocument, sshd: str | bool | None) -> list[str]:
    """Return the program of a shell's job; `sshd` is the site's: its path, or whether it may
    run."""
    options = {
        "--idle": document.idle_timeout,
        "--work-dir": document.work_dir,
        "--sshd": "no" if sshd is False else sshd if isinstance(sshd, str) else None,
    }
    return ["python3", "-m", "detslurm.exec.tasks.shell_server", *_words(options)]


def notebook_entrypoint(
    document: TaskDocument, port: int | None = None, *, in_portal: bool = False
) -> list[str]:
    """Return the program of a notebook's job.

    It listens on a Unix socket, or on a `port` of the node's loopback address (0: any).
    `in_portal`, for Open OnDemand, it listens on a port of all addresses of the node.
    """
    options = {
        "--idle-timeout": document.idle_timeout,
        "--idle-type": document.notebook_idle_type,
        "--port": port,
    }
    # With -P a module in the user's directory takes the place of no other.
    words = ["python3", "-P", "-m", "detslurm.exec.tasks.notebook_server", *_words(options)]
    return [*words, "--portal"] if in_portal else words


def _words(options: Mapping[str, object]) -> list[str]:
    given = ((name, str(value)) for name, value in options.items() if value is not None)
    return [word for pair in given for word in pair]
