"""`detslurm ui` as a process, as a user starts it in a terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_TUNNEL = r"On your laptop:  ssh -N -L {port}:(\S+) \S+@\S+\n"


@dataclass
class Ui:
    """A server that listens.

    Attributes:
        process: Its process.
        to: Its socket or its port.
        path: The path of the address that it has printed, with the secret if there is one.
        tunnel: The command for the laptop that it has printed.
    """

    process: subprocess.Popen[str]
    to: Path | int
    path: str
    tunnel: str

    @property
    def socket(self) -> Path:
        assert isinstance(self.to, Path)
        return self.to


@contextmanager
def ui(
    env: Mapping[str, str], *args: str, user: int | None = None, group: int | None = None
) -> Iterator[Ui]:
    """The command as this user or as another one; it is gone at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "detslurm", "ui", *args],
        env={**os.environ, **env},
        user=user,
        group=group,
        extra_groups=None if user is None else [],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_ctrl_c,
    )
    with started(process) as found:
        yield found


@contextmanager
def started(process: subprocess.Popen[str], laptop_port: int = 8080) -> Iterator[Ui]:
    """A process that becomes such a server, as soon as it listens; it is gone at the end."""
    with process:
        try:
            yield _listening(process, laptop_port)
        finally:
            process.kill()


def _hear_ctrl_c() -> None:
    """A suite in the background of a shell ignores it, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _listening(process: subprocess.Popen[str], laptop_port: int) -> Ui:
    assert process.stdout is not None and process.stderr is not None
    first, second = process.stdout.readline(), process.stdout.readline()
    tunnel = re.fullmatch(_TUNNEL.format(port=laptop_port), first)
    assert tunnel is not None, (first, process.stderr.read())
    address = urlsplit(second.split()[-1])
    target = tunnel[1].removeprefix("127.0.0.1:")
    to = int(target) if target.isdigit() else Path(target)
    path = f"{address.path}?{address.query}" if address.query else address.path
    return Ui(process, to, path, first.partition(":  ")[2].strip())
