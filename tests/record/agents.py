"""A node agent whose configuration asks for a recorder; the runner's part is the test's."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.experiments import Nowhere, agent_command, job_environment
from detslurm._base.child_processes import descendants
from detslurm.exec.agent_protocol import parse_report
from detslurm.sdk import Client
from detslurm.store import ExperimentDir, trial_metrics


@dataclass
class Ended:
    """The outcome of a run."""

    experiment: ExperimentDir
    log: str
    reports: dict[str, dict[str, Any]]

    def metrics(self, group: str) -> list[tuple[int, dict[str, Any]]]:
        """The steps and values that the trial has recorded."""
        return _metrics(self.experiment, group)


@dataclass
class Running:
    """A run whose code is at work."""

    experiment: ExperimentDir
    process: subprocess.Popen[bytes]

    def metrics(self, group: str) -> list[tuple[int, dict[str, Any]]]:
        """The steps and values that the trial has recorded so far."""
        return _metrics(self.experiment, group)

    def recorder(self) -> int:
        """The recorder's process; 0 where there is none."""
        return next(
            (pid for pid in self._below() if _argv(pid)[-1:] == ["detslurm.record.recorder"]), 0
        )

    def code(self) -> list[int]:
        """The processes of the code."""
        return [pid for pid in self._below() if _argv(pid)[-1:] == ["train.py"]]

    def _below(self) -> list[int]:
        return descendants(self.process.pid)

    def end(self) -> Ended:
        """Wait for its end."""
        assert self.process.stdout is not None
        lines = self.process.stdout.read().decode().split("\n")
        found = [(line, parse_report(line)) for line in lines]
        return Ended(
            self.experiment,
            "\n".join(line for line, report in found if report is None),
            {report["event"]: report for _, report in found if report is not None},
        )


def _metrics(experiment: ExperimentDir, group: str) -> list[tuple[int, dict[str, Any]]]:
    trial = experiment.trial(experiment.created().first_trial)
    return [(row.steps, row.metrics) for row in trial_metrics(trial, group)]


def _argv(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []


@contextmanager
def running(
    folder: Path, script: str, config: dict[str, Any], **variables: str
) -> Iterator[Running]:
    """Run a script with a configuration; killed at the end."""
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(textwrap.dedent(script))
    base = {
        "name": "recorded",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "val/loss"},
        "slurm": {"slot_type": "cpu"},
    }
    client = Client(folder / "store", connect=lambda name: Nowhere(folder / "store"))
    experiment = client.store.experiment(client.submit(base | config, code).id)
    (folder / "tmp").mkdir()
    path = f"{Path(sys.executable).parent}:{sys.base_prefix}/bin:/usr/bin:/bin"
    places = {"HERE": str(folder), "TMPDIR": str(folder / "tmp"), "PATH": path}
    environment = job_environment(dict(os.environ) | places | variables)
    pipe = subprocess.PIPE
    command = agent_command(experiment)
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as process:
        try:
            yield Running(experiment, process)
        finally:
            process.kill()
