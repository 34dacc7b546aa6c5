"""Runs in a container, by the image's Python (3.8 or later): writes the facts that it finds there.

`python3 container_probe.py FILE NAME=DIRECTORY ...` imports nothing of detslurm where Python is too
old for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def _problem() -> str | None:
    """Why code can't use detslurm here."""
    if sys.version_info < (3, 11):  # noqa: UP036 (the image's Python)
        return None
    try:
        import detslurm.store  # noqa: F401 (its records need a msgspec that fits)
        from detslurm._base.flag import PreemptFlag

        PreemptFlag.of_this_node()
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _can_write(folder: str) -> bool:
    path = Path(folder, f".detslurm-doctor-{os.getpid()}")
    try:
        path.touch(mode=0o600, exist_ok=False)
        path.unlink()
    except OSError:
        return False
    return True


def _gpus() -> list[str]:
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=10, check=False)
        if done.returncode == 0:
            return done.stdout.decode(errors="replace").splitlines()
    except (OSError, subprocess.SubprocessError):
        pass
    return [path for path in ("/dev/nvidia0", "/dev/kfd") if Path(path).exists()]


def main(file: str, *places: str) -> None:
    """Write the facts to a file."""
    found = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "problem": _problem(),
        "written": {name: _can_write(path) for name, _, path in (p.partition("=") for p in places)},
        "gpus": _gpus(),
        "pmix": [name for name in sorted(os.environ) if name.startswith(("PMIX_", "PMI_"))],
    }
    Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
