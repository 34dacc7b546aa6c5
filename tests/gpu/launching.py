"""Start ranks on this machine's GPUs by the launcher, as a user would by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.pytorch.conftest import REPOSITORY

Results = list[dict[str, Any]]


def launched(count: int, module: str, scenario: str, folder: Path, **environment: str) -> Results:
    """What each rank returned of a scenario of the module."""
    folder.mkdir()
    launcher = [sys.executable, "-m", "detslurm.launch.torch_distributed"]
    worker = ["-m", module, scenario, str(folder)]
    done = subprocess.run(
        [*launcher, f"--nproc-per-node={count}", "--", *worker],
        cwd=REPOSITORY,
        env=os.environ
        | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        | {"DETSLURM_ROOT": str(folder / "store")}
        | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(count)]
