"""A node agent by itself: the runner's ends of its pipes are the test's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.experiments import agent_command, job_environment, submitted
from detslurm.exec.agent_protocol import parse_report


@contextmanager
def agent(folder: Path, script: str, prefix: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """An agent that runs `script` behind `prefix`, with `folder` in HERE; killed at the end.

    Temporary files lie in `folder/tmp`.
    """
    (folder / "tmp").mkdir(exist_ok=True)
    slurm = f", container_prefix: [{', '.join(prefix.split())}]" if prefix else ""
    experiment = submitted(folder, folder / "store", "python3 train.py", script, slurm)
    path = f"{Path(sys.executable).parent}:{sys.base_prefix}/bin:/usr/bin:/bin"
    places = {"HERE": str(folder), "TMPDIR": str(folder / "tmp"), "PATH": path}
    environment = job_environment(dict(os.environ) | places)
    process = subprocess.Popen(
        agent_command(experiment),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def reports(process: subprocess.Popen[bytes]) -> dict[str, dict[str, Any]]:
    """What the agent reported until its end: the last report of each kind."""
    assert process.stdout is not None
    lines = process.stdout.read().decode().split("\n")
    found = [report for line in lines if (report := parse_report(line)) is not None]
    return {report["event"]: report for report in found}
