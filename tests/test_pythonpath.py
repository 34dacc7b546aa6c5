"""A module tree in PYTHONPATH has other versions of the packages that detslurm needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import detslurm

WRONG = "raise ImportError('made for another Python')"


def tree(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(WRONG)
    return folder


def detslurm_command(path: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [str(Path(sys.executable).with_name("detslurm")), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env)


@pytest.mark.parametrize("words", [("--help",), ("template", "list"), ("doctor", "--help")])
def test_commands_find_their_own_packages(tmp_path: Path, words: tuple[str, ...]) -> None:
    """What a module tree has of them does not count."""
    path = tree(tmp_path, "msgspec", "click", "yaml", "json")
    (tmp_path / "typing_extensions.py").write_text(WRONG)
    done = detslurm_command(str(path), *words)
    assert done.returncode == 0 and "Traceback" not in done.stderr


def test_a_tree_with_detslurm_itself_is_named(tmp_path: Path) -> None:
    """There its packages are those that count: one sentence, no traceback."""
    path = tree(tmp_path, "click")
    (tmp_path / "detslurm").symlink_to(Path(detslurm.__file__).parent)
    done = detslurm_command(str(path), "experiment", "list")
    assert done.returncode == 1
    assert f"PYTHONPATH has a click that detslurm can't use, in {path}" in done.stderr
    assert "made for another Python" in done.stderr and "Traceback" not in done.stderr
