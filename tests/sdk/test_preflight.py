"""What is looked at before an experiment is queued."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from detslurm._base import pythonpath
from detslurm.sdk.submission.preflight import check_sampler


def optunas(**searcher: Any) -> dict[str, Any]:
    return {
        "searcher": {
            "name": "optuna", "metric": "loss", "max_trials": 2, "sampler": "tpe", **searcher,
        },
        "hyperparameters": {"x": {"type": "double", "minval": 0, "maxval": 1}},
        "reproducibility": {"experiment_seed": 1},
    }  # fmt: skip


def test_samples_are_tried_before_a_job_needs_them() -> None:
    """Arguments that Optuna refuses are said at once, of the sampler and of the pruner."""
    assert check_sampler(optunas(sampler="cmaes", pruner="median")).problems == []
    (problem,) = check_sampler(optunas(sampler_args={"startup": 3})).problems
    assert "searcher.sampler_args" in problem and "startup" in problem
    halving = {"name": "async_halving", "num_rungs": 2, "time_metric": "epochs", "max_time": 4}
    assert check_sampler(optunas(**halving)) == ([], [])
    problems, notes = check_sampler(optunas(sampler_args={"prior_weight": 2.0}))
    assert problems == [] and len(notes) == 1
    assert (
        notes[0].startswith("searcher.sampler_args: Optuna warns: ") and "prior_weight" in notes[0]
    )
    (problem,) = check_sampler(optunas(pruner="threshold")).problems
    assert "searcher.pruner_args" in problem


def test_a_missing_optuna_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the extra to install; other searchers never ask for it."""
    (tmp_path / "optuna.py").write_text("raise ImportError('no such thing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(pythonpath, "is_needed", lambda: True)
    (problem,) = check_sampler(optunas()).problems
    assert "pip install 'detslurm[optuna]'" in problem
    assert check_sampler({**optunas(), "searcher": {"name": "random"}}) == ([], [])


STORAGE_OF = """if True:
    import sys
    from detslurm.config import load_experiment
    from detslurm.sdk.submission.preflight import storage_notes

    section = {"type": "shared_fs", "host_path": sys.argv[1], "storage_path": "runs/ckpts"}
    loaded = load_experiment({
        "name": "x", "entrypoint": "python3 train.py", "checkpoint_storage": section,
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
    })
    print(*storage_notes(loaded.config))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_of_a_storage_that_the_user_can_not_write_to_it_warns() -> None:
    """Where it is here: another file system may be on the nodes alone."""

    def problems(folder: str) -> str:
        argv = [sys.executable, "-c", STORAGE_OF, folder]
        done = subprocess.run(argv, user=65534, check=True, text=True, stdout=subprocess.PIPE)
        return done.stdout.strip()

    with tempfile.TemporaryDirectory() as lab:
        Path(lab).chmod(0o777)
        assert problems(lab) == "" and problems(f"{lab}/only-on-nodes") == ""
        runs = Path(lab, "runs")
        runs.mkdir(0o755)
        assert f"no checkpoint can be saved in {runs}/ckpts: {runs} can't be w" in problems(lab)
        runs.rmdir()
        runs.touch()
        assert f"{runs} is no directory" in problems(lab)
