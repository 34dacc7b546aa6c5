"""`detslurm compare`: what differs, and nothing else."""

from __future__ import annotations

import pytest

from detslurm.sdk.experiments.comparison import Comparison, Difference
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import YAML, Scene
from tests.store.faults import refusing


def fill(scene: Scene) -> None:
    """Two experiments with other settings, code, secrets and results."""
    first = scene.experiment(2, job="7")
    changed = YAML.replace("[0.1, 0.2]", "[0.1, 0.3]").replace("hush-hush", "whisper")
    second = scene.experiment(1, job="8", text=changed + "max_restarts: 2\n", name="other")
    (second.code / "train.py").write_text("print('hello')\nprint('again')\n")
    (second.code / "more.bin").write_bytes(b"\xff\x00")
    (second.code / "experiment.yaml").write_text(changed)  # a configuration is compared as such
    scene.run(first, 0, losses=[3.0, 2.0], end="completed")
    scene.run(first, 1, losses=[4.0], end="completed")
    scene.run(second, 0, losses=[1.5], end="completed")


def test_experiments_side_by_side(scene: Scene, detslurm: Detslurm) -> None:
    """Keys, files and results with a value for each; equal ones are left out, secrets masked."""
    fill(scene)
    data = detslurm("compare", 1, 2, "--code", "--json").data
    assert data["ids"] == [1, 2]
    assert data["config"]["max_restarts"] == {"1": 5, "2": 2}
    assert data["config"]["hyperparameters.lr"]["2"]["vals"] == [0.1, 0.3]
    assert data["config"]["data.secrets.token"] == {"1": "********", "2": "********"}
    assert "entrypoint" not in data["config"] and "searcher.metric" not in data["config"]
    assert data["results"]["best loss"] == {"1": 2.0, "2": 1.5}
    assert data["results"]["trials"] == {"1": 2, "2": 1} and "state" not in data["results"]
    assert data["code"].keys() == {"train.py", "more.bin"}
    assert data["code"]["more.bin"]["1"] is None
    assert data["diffs"].keys() == {"train.py"}
    assert "+print('again')" in data["diffs"]["train.py"].splitlines()

    shown = detslurm("compare", "1,2")
    assert "max_restarts" in shown.out and "+print" not in shown.out
    assert shown.out.startswith("Results:\n") and "Result " in shown.out.splitlines()[1]
    assert "| Experiment 1 | Experiment 2" in shown.out.splitlines()[1]
    assert (
        shown.out.index("Results:") < shown.out.index("Configuration:") < shown.out.index("Code:")
    )
    assert "hush" not in shown.out and "whisper" not in shown.out
    assert detslurm("compare", 1, 1).status == 2


def test_times_are_written_as_people_write_them() -> None:
    """Seconds are for scripts."""
    from detslurm.cli.compare import _text

    took = Difference("seconds", (7384, None))
    found = Comparison(ids=(1, 2), config=(), environment=(), code=(), results=(took,), diffs={})
    assert [line.rstrip() for line in _text(found, "trial").splitlines()] == [
        "Results:",
        " Result   | Trial 1               | Trial 2",
        "----------+-----------------------+---------",
        " duration | 2 hours and 3 minutes | -",
    ]


def test_lines_are_compared_where_they_are_asked_for(
    scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of two experiments may have many files."""
    fill(scene)
    monkeypatch.delattr("detslurm.sdk.experiments.comparison.difflib.unified_diff")
    assert "train.py" in detslurm("compare", 1, 2).out


def test_trials_side_by_side(scene: Scene, detslurm: Detslurm) -> None:
    """Each with the hyperparameters that it had."""
    fill(scene)
    data = detslurm("compare", "-t", 1, 2, 3, "--json").data
    assert data["config"]["hyperparameters.i"] == {"1": 0, "2": 1, "3": 0}
    assert "hyperparameters.lr" not in data["config"]
    assert data["results"]["steps"] == {"1": 2, "2": 1, "3": 1}
    same = detslurm("compare", "-t", 1, 2)
    assert "Code" not in same.out and "best loss" in same.out
    assert detslurm("compare", "-t", 1, 99).status == 1


def test_code_that_can_not_be_read_is_left_out(scene: Scene, detslurm: Detslurm) -> None:
    """Of another user, say: all else is compared."""
    fill(scene)
    with refusing(scene.store.experiment(2).code):
        result = detslurm("compare", 1, 2, "--json")
    assert (result.status, result.data["code"]) == (0, {})
    assert result.data["config"]["max_restarts"] == {"1": 5, "2": 2}
    assert "the code is not compared" in result.err
