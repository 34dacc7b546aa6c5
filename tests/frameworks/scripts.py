"""Scripts that train with a framework, in one process each: it takes seconds to import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def printed_by(name: str, beside: Path, folder: Path, **more: str) -> tuple[Any, str]:
    """The last line that the script prints, as JSON, and all that it says on stderr."""
    path = f"{beside}:{HERE.parents[1]}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / name), str(folder)],
        env={**os.environ, "PYTHONPATH": path, "DETSLURM_TRACK": "0", **more},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr
