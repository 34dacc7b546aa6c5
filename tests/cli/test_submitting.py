"""`detslurm submit`, as far as it goes without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sdk.scenes import CUSTOM, SEARCH, YAML, Scene

from .conftest import Detslurm


@pytest.fixture
def config(scene: Scene, tmp_path: Path) -> Path:
    """Where a configuration goes, beside its code."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("")
    return folder / "experiment.yaml"


def test_a_custom_search_is_refused(scene: Scene, config: Path, detslurm: Detslurm) -> None:
    """Without its method it would wait for ever: the message says who submits it."""
    config.write_text(CUSTOM)
    said = detslurm("submit", config)
    assert said.status == 1 and "LocalSearchRunner" in said.err
    assert not (scene.root / "experiments" / "1").exists() and scene.queue.requests == []


PACKED = YAML.replace("slot_type: cpu", "slot_type: cpu, trials_per_job: 2").replace(
    "0.2]", "0.2, 0.3]"
)


@pytest.mark.parametrize(
    ("text", "jobs"),
    [
        (SEARCH, "3 workers, 3"),
        (YAML, "2 trials, 2"),
        (PACKED, "2 times 2 trials, 2"),
    ],
)
def test_a_dry_run_says_what_the_jobs_are(
    config: Path, detslurm: Detslurm, text: str, jobs: str
) -> None:
    """The jobs of a search work at any of its trials; else each has its own, or some."""
    config.write_text(text)
    assert f"arrays: {jobs} at once" in detslurm("submit", config, "--dry-run").out
