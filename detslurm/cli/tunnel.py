"""Serves one user's browser: a way to a laptop, and an end with its terminal."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from detslurm._base.access import user_name


def tunnel_here(laptop_port: int, target: str) -> str:
    """The command that brings a port or a Unix socket of this machine to a laptop."""
    return tunnel(os.environ, user_name(), socket.gethostname(), f"{laptop_port}:{target}")


def tunnel(env: Mapping[str, str], user: str, host: str, forward: str) -> str:
    """The same as another user on another machine; jobs are behind a login node."""
    return _through(_submitter(env), user, host, forward)


def tunnel_to(node: str, forward: str) -> str:
    """The command that brings a port or a Unix socket of a job's node to a laptop."""
    login = _submitter(os.environ) or socket.gethostname()
    return _through(login, user_name(), node, forward)


def _submitter(env: Mapping[str, str]) -> str | None:
    """The machine from which the job was submitted, if this is in a job."""
    return env.get("SLURM_SUBMIT_HOST") if "SLURM_JOB_ID" in env else None


def _through(login: str | None, user: str, host: str, forward: str) -> str:
    """The command, by way of the login node unless that is the host itself."""
    jump = f"-J {user}@{login} " if login and login != host else ""
    return f"ssh -N -L {shlex.quote(forward)} {jump}{user}@{host}"


def is_login_node(env: Mapping[str, str]) -> bool:
    """Whether this is a machine with Slurm outside of any job."""
    return "SLURM_JOB_ID" not in env and shutil.which("sbatch") is not None


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """A lost connection ends it like Ctrl-C, so that nothing stays behind."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
