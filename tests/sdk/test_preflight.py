"""What is looked at before an experiment is queued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detslurm.sdk.submission.preflight import sampler_problems


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
