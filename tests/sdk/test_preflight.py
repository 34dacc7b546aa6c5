"""What is looked at before an experiment is queued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detslurm.sdk.context import ContextFile, ContextFiles
from detslurm.sdk.preflight import entrypoint_problems, sampler_problems

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


def optunas(**searcher: Any) -> dict[str, Any]:
    return {
        "searcher": {"name": "optuna", "metric": "loss", "max_trials": 2, **searcher},
        "hyperparameters": {"x": {"type": "double", "minval": 0, "maxval": 1}},
        "reproducibility": {"experiment_seed": 1},
    }


def test_samples_are_tried_before_a_job_needs_them() -> None:
    """Arguments that Optuna refuses are said at once, of the sampler and of the pruner."""
    assert sampler_problems(optunas(sampler="cmaes", pruner="median")) == []
    (problem,) = sampler_problems(optunas(sampler_args={"startup": 3}))
    assert "searcher.sampler_args" in problem and "startup" in problem
    (problem,) = sampler_problems(optunas(pruner="threshold"))
    assert "searcher.pruner_args" in problem


def test_a_missing_optuna_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the extra to install; other searchers never ask for it."""
    (tmp_path / "optuna.py").write_text("raise ImportError('no such thing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (problem,) = sampler_problems(optunas())
    assert "pip install 'detslurm[optuna]'" in problem
    assert sampler_problems({**optunas(), "searcher": {"name": "random"}}) == []
