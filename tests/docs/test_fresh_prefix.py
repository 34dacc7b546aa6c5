"""The commands that begin from nothing: a new clone, a new home, no .venv."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY

# pip builds an environment with torch in it, beside everything else that runs here.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("prefix")]


@pytest.fixture(scope="module")
def prefix() -> Iterator[Path]:
    """A fresh clone beside a fresh home."""
    root = Path(tempfile.mkdtemp(prefix="detslurm-prefix-"))
    root.chmod(0o755)
    (root / "home").mkdir()
    clone = root / "detslurm"
    if (REPOSITORY / ".git").exists():
        subprocess.run(["git", "clone", "--quiet", REPOSITORY, clone], check=True)
    else:  # a copy of the working tree, or an unpacked archive
        subprocess.run([REPOSITORY / "scripts" / "copy.sh", clone], check=True)
    yield clone
    shutil.rmtree(root)


def run(clone: Path, *argv: str) -> str:
    """Run a command in the clone as in a new login; its output."""
    kept = {
        name: value for name, value in os.environ.items() if re.match("PIP_|https?_proxy", name)
    }
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    env = {
        "HOME": str(clone.parent / "home"),
        "PATH": f"{clone}/.venv/bin:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "SLURM_CONF": "/nonexistent",
        # What was downloaded once is not downloaded again.
        "PIP_CACHE_DIR": f"{cache}/pip",
        **kept,
    }
    done = subprocess.run(
        argv, cwd=clone, env=env, stdin=subprocess.DEVNULL, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_make_demo(prefix: Path) -> None:
    """`make demo` trains digits to over 95 %, and the store in the new home has it."""
    output = run(prefix, "make", "demo")
    last = re.findall(r"epoch 10: accuracy (0\.\d+)", output)
    assert last and float(last[0]) > 0.95
    assert "run 1 ended: completed" in output
    assert "COMPLETED" in run(prefix, "detslurm", "experiment", "list")


def test_pip_install(prefix: Path) -> None:
    """`python3 -m pip install .` gives a package that works without the checkout."""
    if not (prefix / ".venv").exists():
        run(prefix, "python3", "-m", "venv", ".venv")
    run(prefix, "python3", "-m", "pip", "install", "--quiet", ".")
    where = "import detslurm, detslurm.sdk, detslurm.launch; print(detslurm.sdk.__file__)"
    assert "site-packages" in run(prefix, "python3", "-I", "-c", where)
    assert "submit" in run(prefix, "detslurm", "--help")
