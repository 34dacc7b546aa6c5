"""The commands that begin from nothing: a new clone and a new home.

The index of packages is the one thing that is not asked here: `make test` itself begins with an
installation from there, and what it has installed is borrowed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import borrowed
from tests.docs.pages import REPOSITORY


@pytest.fixture(scope="module")
def prefix() -> Iterator[Path]:
    """A fresh clone beside a fresh home, with what the demo needs in its .venv."""
    root = Path(tempfile.mkdtemp(prefix="detslurm-prefix-"))
    root.chmod(0o755)
    (root / "home").mkdir()
    clone = root / "detslurm"
    if not cloned(clone):  # an unpacked archive, no git, or a clone of somebody else's
        subprocess.run([REPOSITORY / "scripts" / "copy.sh", clone], check=True)
    borrowed.make_venv(clone / ".venv", "pip", "setuptools", "detslurm[examples,look,torch]")
    yield clone
    shutil.rmtree(root)


def cloned(target: Path) -> bool:
    """Clone this repository where it is one and git is there and willing."""
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        return False
    done = subprocess.run(["git", "clone", "--quiet", REPOSITORY, target], check=False)
    return done.returncode == 0


def run(clone: Path, *argv: str) -> str:
    """Run a command in the clone as in a new login; its output."""
    env = {
        "HOME": str(clone.parent / "home"),
        "PATH": f"{clone}/.venv/bin:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "SLURM_CONF": "/nonexistent",
        # On a busy machine torch's threads wait for one another more than they compute.
        "OMP_NUM_THREADS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # of a negative option pip takes the positive value
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
    assert "detslurm report last" in output.splitlines()[-1]
    assert "COMPLETED" in run(prefix, "detslurm", "experiment", "list")
    assert ".html" in run(prefix, "detslurm", "report", "last")


def test_pip_install(prefix: Path) -> None:
    """The README's installation works without the checkout, and in it."""
    run(prefix, "python3", "-m", "pip", "install", "--quiet", ".[look]")
    where = "import detslurm, detslurm.sdk, detslurm.launch; print(detslurm.sdk.__file__)"
    assert "site-packages" in run(prefix, "python3", "-I", "-c", where)
    assert str(prefix / "detslurm") in run(prefix, "python3", "-c", where)
    assert "submit" in run(prefix, "detslurm", "--help")
    assert "gpu-gres" in run(prefix, "detslurm", "site", "list")
