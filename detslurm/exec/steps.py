"""The steps of a job: one for each run, or one whose agent serves run after run."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from detslurm._base import startup
from detslurm.config.run_config import RunConfig
from detslurm.exec import agent_protocol
from detslurm.slurm import Allocation

# Seconds in which an idle agent ends.
_GRACE = 5.0


class Steps:
    """Begins the step of a run, with an agent on every node; raises `SlurmError`."""

    def __init__(self, allocation: Allocation, config: RunConfig, experiment: Path) -> None:
        self._allocation, self._config, self._experiment = allocation, config, experiment
        self._idle: subprocess.Popen[bytes] | None = None

    def begin(self, trial_id: int, run: int) -> subprocess.Popen[bytes]:
        """The step of that run; `leave` follows."""
        step, self._idle = self._idle, None
        if step is not None and step.poll() is None and _sent(step, trial_id, run):
            return step
        agent = startup.command("detslurm.exec.agent")
        argv = [*agent, str(self._experiment), str(trial_id), str(run)]
        return begun(self._allocation.step_command(argv, mpi=self._config.slurm.mpi))

    def leave(self, step: subprocess.Popen[bytes], *, is_free: bool) -> None:
        """The run is over; the agent of a free step waits for another one."""
        if is_free:
            self._idle = step
        else:
            _close(step)

    def end(self) -> None:
        """There is no further run."""
        step, self._idle = self._idle, None
        if step is not None:
            _close(step)
            with contextlib.suppress(subprocess.TimeoutExpired):
                step.wait(_GRACE)


def begun(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """A step, whose agents get commands and send reports by its pipes."""
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
    )


def _sent(step: subprocess.Popen[bytes], trial_id: int, run: int) -> bool:
    assert step.stdin is not None
    try:
        step.stdin.write(f"{agent_protocol.RUN}{trial_id} {run}\n".encode())
    except BrokenPipeError:
        return False
    return True


def _close(step: subprocess.Popen[bytes]) -> None:
    for pipe in (step.stdin, step.stdout):
        if pipe is not None:
            pipe.close()
