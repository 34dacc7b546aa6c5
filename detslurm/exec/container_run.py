"""A container while it runs, and its end: the code's own process, its status, its leftovers."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from detslurm._base.node_files import PREFIX, remove
from detslurm._base.process import Identity, started
from detslurm.config.run_config import RunConfig
from detslurm.exec.container_library import library_of
from detslurm.exec.container_runtimes import LABEL
from detslurm.exec.entrypoint import OUTLIVE
from detslurm.exec.podman import PODMAN, podman_lines

CANT_BEGIN = "the container could not begin"
"""So begins the text of this failure."""

_MARK, _STATUS = ".container-began", ".container-ended"
_PATIENCE = 10.0  # in seconds, for Podman to end after the code

# The code's directory is not where each runtime begins, and Podman has a umask of its own.
_CHANGE = """
cd "$1" || { echo "detslurm: the container does not see $1 of the node" >&2; exit 125; }
umask "$2"; shift 2
"""
# The mark shows that the runtime has not failed. Podman ends with 0 at a SIGTERM, which comes to
# all processes where there are no cgroups, and the code goes on: so its process and its status are
# written down.
_MARKED = f"""{OUTLIVE}here=$1
{_CHANGE}
echo $$ > "$here/{_MARK}"
"$@"
status=$?
echo $status > "$here/{_STATUS}"
exit $status
"""
_OF_RANK = f'{_CHANGE}exec "$@"\n'


def first_line(workdir: Path, *, is_rank: bool = False) -> list[str]:
    """The words that begin in the container, before the command of the code."""
    os.umask(mask := os.umask(0))
    return ["sh", "-c", _OF_RANK if is_rank else _MARKED, "sh", str(workdir), f"{mask:04o}"]


class ContainerRun:
    """The container of one run on this node."""

    def __init__(self, config: RunConfig, workdir: Path) -> None:
        self._config, self._workdir = config, workdir
        self._process: tuple[int, str | None] | None = None
        self._ended: float | None = None
        for name in (_MARK, _STATUS):  # the code may be a copy of an earlier working directory
            (workdir / name).unlink(missing_ok=True)

    def is_running(self) -> bool:
        """Whether the code runs, though the program that started its container may have ended."""
        if self._config.slurm.container not in PODMAN or self.status() is not None:
            return False
        if self._process is None and (pid := _number(self._workdir / _MARK)) is not None:
            self._process = pid, started(pid)
        if self._process is None or self._process[1] is None:
            return False  # it had ended when its mark was read
        return self._process[1] == started(self._process[0])

    def hangs(self) -> bool:
        """Whether the code has ended, and the program that started its container waits on.

        Podman waits without end for a monitor that was killed.
        """
        has_begun = (self._workdir / _MARK).exists()
        if self._config.slurm.container not in PODMAN or not has_begun or self.is_running():
            self._ended = None
            return False
        self._ended = self._ended or time.monotonic()
        return time.monotonic() > self._ended + _PATIENCE

    def status(self) -> int | None:
        """The exit status of the code, where it has ended by itself."""
        return _number(self._workdir / _STATUS)

    def exit_status(self, of_starter: int, *, is_preempted: bool) -> int:
        """The exit status of the code, by that of the program that started its container.

        A SIGTERM that comes to all processes ends Podman with 0, also before the code has begun, or
        when the code was killed. That is no success.
        """
        if (own := self.status()) is not None:
            return own
        has_begun = (self._workdir / _MARK).exists()
        if is_preempted and not (has_begun and of_starter):
            return 128 + signal.SIGTERM
        return of_starter

    def blame(self, status: int, last_line: str) -> str | None:
        """Why the container could not begin; None if the code has begun in it."""
        if (self._workdir / _MARK).exists():
            return None
        slurm, line = self._config.slurm, f": {last_line}" if last_line else ""
        runtime = next(iter(slurm.container_prefix), slurm.container)
        return f"{CANT_BEGIN}; {runtime} exited with {status}{line}"

    def remove_traces(self) -> None:
        """Remove what it has left, and Podman's containers of dead agents."""
        for place in (library_of(self._workdir), private_tmp(self._workdir)):
            remove(place)
        if (runtime := self._config.slurm.container) not in PODMAN:
            return
        # The first order to remove one whose monitor was killed fails, and lets a second succeed.
        for _ in range(2):
            if not (left := self._left_by_podman(runtime)):
                break
            podman_lines([runtime, "rm", "--force", "--time=0", *left])

    def _left_by_podman(self, runtime: str) -> list[str]:
        form = f'{{{{.ID}}}} {{{{index .Labels "{LABEL}"}}}}'
        lines = podman_lines(
            [runtime, "ps", "--all", f"--filter=label={LABEL}", f"--format={form}"]
        )
        owners = dict(line.split(" ", 1) for line in lines if " " in line)
        return [name for name, owner in owners.items() if self._is_over(owner)]

    def _is_over(self, owner: str) -> bool:
        process = Identity.parse(owner.removeprefix(PREFIX))
        return owner == self._workdir.name or (process is not None and process.is_dead())


def private_tmp(workdir: Path) -> Path:
    """The directory that is /tmp in the container, with `slurm.private_tmp`."""
    return workdir.with_name(f"{workdir.name}-tmp")


def _number(file: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(file.read_text())
    return None
