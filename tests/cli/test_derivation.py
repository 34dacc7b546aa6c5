"""`experiment continue`, `fork` and `rerun` as commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Detslurm
from tests.sdk.scenes import Scene


@pytest.fixture
def finished(scene: Scene) -> int:
    """An experiment with a checkpoint."""
    experiment = scene.experiment(1)
    scene.run(experiment, losses=[3.0, 2.0], checkpoint="kept", end="completed")
    return experiment.id


def test_what_they_say(scene: Scene, detslurm: Detslurm, finished: int, tmp_path: Path) -> None:
    """The new experiment, its jobs, and where it comes from."""
    changes = tmp_path / "more.yaml"
    changes.write_text("max_restarts: 1\n")
    trial = scene.store.experiment(finished).created().first_trial
    words = ("e", "continue", finished, "--trial", trial, "--config-file", changes)
    done = detslurm(*words, "--config", "searcher.max_length=20", "--paused")
    assert done.out.splitlines()[0] == f"Continued experiment {finished} as experiment 2"
    assert done.out.splitlines()[1].endswith("(paused)")
    assert scene.store.experiment(2).config()["max_restarts"] == 1
    assert detslurm("e", "fork", finished, "--json").data["experiment_id"] == 3
    again = detslurm("e", "rerun", finished, "--config", "reproducibility.experiment_seed=2")
    assert again.out.startswith(f"Running experiment {finished} again as experiment 4\n")
    seed = scene.store.experiment(4).config()["reproducibility"]["experiment_seed"]
    assert seed == 2
    assert f"experiment {finished} (rerun)" in detslurm("e", "describe", 4).out
    assert detslurm("e", "describe", 3, "--json").data["parent"] == finished


def test_what_they_refuse(scene: Scene, detslurm: Detslurm, finished: int, tmp_path: Path) -> None:
    """In a line that says what to do, and nothing is queued."""
    nothing = tmp_path / "nothing"
    for words, status, text in [
        (("continue", finished), 1, "--config searcher.max_length"),
        (("continue", finished, "--trial", "x"), 2, "not the id"),
        (("continue", finished, "-f", "--json"), 2, "--json"),
        (("continue", 99), 1, "no experiment 99"),
        (("fork", finished, "--config-file", nothing), 2, "nothing"),
        (("fork", finished, "--context", nothing), 1, "does not exist"),
        (("fork", finished, "--from-checkpoint", "0123"), 1, "no checkpoint"),
        (("rerun", finished, "--config", "slurm.nonsense=1"), 2, "nonsense"),
    ]:
        result = detslurm("experiment", *words)
        assert (result.status, text in result.err) == (status, True), (words, result)
        assert "Traceback" not in result.err
    assert len(scene.queue.requests) == 0 and len(scene.client.rows()) == 1
