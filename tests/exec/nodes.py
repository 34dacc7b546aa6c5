"""A node agent by itself: the runner's ends of its pipes are the test's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.experiments import agent_command, job_environment, submitted


@contextmanager
def agent(folder: Path, script: str, config: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """An agent that runs `script`, which finds `folder` in HERE; killed at the end."""
    folder.mkdir(exist_ok=True)
    experiment = submitted(folder, folder / "store", "python3 train.py", script, config)
    environment = job_environment(dict(os.environ) | {"HERE": str(folder)})
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
