"""Other people's software, installed once in environments of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Skip

REPOSITORY = Path(__file__).resolve().parents[1]
# Not beside detslurm: Determined wants other versions of what the suite needs, too.
PEERS = (
    "torch",
    "numpy",
    "tensorboard",
    "deepspeed==0.19.8",
    "determined==0.38.1",
    "lightning",
    "accelerate",
)


def cache_directory() -> Path:
    """Where the user keeps what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "detslurm"


def python_with_peers() -> Path:
    """A Python that can import the peers; made in the user's cache when it isn't there yet."""
    return python_with(PEERS)


def python_with(packages: Sequence[str]) -> Path:
    """Return a Python that can import packages; made in the user's cache if it isn't there yet.

    Args:
        packages: Requirements, as pip takes them.

    Raises:
        Skip: If they can't be installed.
    """
    constraints = REPOSITORY / "constraints.txt"
    recipe = f"{sys.version} {tuple(packages)} {constraints.read_text()}"
    place = cache_directory() / f"peers-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    python, stamp = place / "bin" / "python", place / "installed"
    if not stamp.exists():
        print(f"installing {', '.join(packages)} in {place}", file=sys.stderr, flush=True)
        _run(sys.executable, "-m", "venv", "--clear", str(place))
        _run(str(python), "-m", "pip", "install", "--quiet", "-c", str(constraints), *packages)
        stamp.touch()
    return python


def _run(*argv: str) -> None:
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        last = done.stdout.strip().splitlines()[-1:]
        raise Skip(f"the peers can't be installed: {' '.join(last)}")
