"""What is looked at before an experiment is queued."""

from __future__ import annotations

from pathlib import Path

import pytest
from detslurm.sdk.context import ContextFile, ContextFiles
from detslurm.sdk.preflight import entrypoint_problems

TRAIN = ContextFiles((ContextFile(Path("train.py"), "train.py", 1),), ())


@pytest.fixture(autouse=True)
def _not_activated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user who calls the environment's `detslurm` by its path, with nothing else in PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize(
    "entrypoint",
    [
        "python3 train.py",
        "python -m determined.launch.torch_distributed python train.py --epochs 5",
        ["python3", "-m", "determined.launch.torch_distributed", "train.py"],
    ],
)
def test_the_submitting_python_is_in_the_jobs_path(entrypoint: str | list[str]) -> None:
    """A job finds the commands of the environment that submitted it, so they are not missed."""
    assert entrypoint_problems(entrypoint, TRAIN, prepared=False) == []


def test_what_no_job_would_find() -> None:
    """A command that is in neither place, and a script that isn't in the context, are said."""
    (problem,) = entrypoint_problems("pyhton train.py", TRAIN, prepared=False)
    assert "no command 'pyhton' in PATH" in problem
    (problem,) = entrypoint_problems("python3 trian.py", TRAIN, prepared=False)
    assert "did you mean 'train.py'?" in problem
