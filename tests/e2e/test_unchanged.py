"""Scripts in the form in which others publish them: examples/unchanged, without a line for us."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet

from detslurm.store import trial_metrics
from tests.beside import hugging_face, hydra, keras, lightning
from tests.cluster import Cluster
from tests.cluster.spec import LIGHT_STARTS
from tests.e2e.conftest import copy_example
from tests.e2e.desk import EXAMPLES, Desk
from tests.e2e.test_main_job import make_room

__all__ = ["hugging_face", "hydra", "keras", "lightning"]

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


class Script(NamedTuple):
    """One of the examples: where it is preempted, and its last step."""

    name: str
    metric: str
    held_at: int
    last: int
    packages: str | None = None  # a fixture of tests/beside.py
    overrides: tuple[str, ...] = ()


SCRIPTS = [
    Script("nanogpt", "loss", 100, 300, None, ("hyperparameters.max_iters=300",)),
    Script(
        "hydra", "val/loss", 10, 32, "hydra", ("hyperparameters.epochs=32", "searcher.max_time=32")
    ),
    Script("timm", "top1", 4, 14, None, ("hyperparameters.epochs=15",)),
    Script("hf_trainer", "eval/accuracy", 100, 288, "hugging_face"),
    Script("lightning", "val_acc", 100, 479, "lightning", ("hyperparameters.epochs=20",)),
    Script("wandb", "val/loss", 20, 59),
    Script("mlflow", "val_loss", 30, 99),
    Script("keras", "val_loss", 10, 39, "keras"),
]
TRIALS = 2


def _parameters() -> list[ParameterSet]:
    return [
        pytest.param(one, id=one.name, marks=[pytest.mark.nightly] if one is not SCRIPTS[0] else [])
        for one in SCRIPTS
    ]


@pytest.mark.parametrize("script", _parameters())
def test_a_published_script_is_searched_preempted_and_resumed(
    desk: Desk, site: Cluster, script: Script, request: pytest.FixtureRequest
) -> None:
    """It gets its hyperparameters, has the metrics that it logged, and resumes from its files."""
    variables = [f"{name}={value}" for name, value in LIGHT_STARTS.items()]
    if script.packages is not None:
        folder: Path = request.getfixturevalue(script.packages)
        variables += [f"PYTHONPATH={folder}", "KERAS_BACKEND=torch"]
    if script.name == "timm":  # PyPI's torchvision needs this beside a CPU build of torch
        source = (EXAMPLES / "core_api_walkthrough/cpu_torchvision.py").read_text()
        variables += [f"PYTHONPATH={desk.write('site/sitecustomize.py', source).parent}"]
    config = copy_example(desk, f"unchanged/{script.name}") / "experiment.yaml"
    number = desk.submit(
        config,
        "resources.resource_pool=low",
        f"environment.environment_variables={variables}",
        f"searcher.max_trials={TRIALS}",
        "max_restarts=0",
        *script.overrides,
    )
    desk.wait_for_a_trial_at(number, script.held_at)
    high = make_room(desk)
    site.wait_state(high, "RUNNING", "COMPLETED")
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED"
    trials = [_ended(desk, number, script, index) for index in range(TRIALS)]
    assert (["preempted", "completed"], {1, 2}, script.last) in trials, "it resumed from its files"
    stops_trials = script.name == "hydra"
    assert stops_trials or all(last == script.last for _, _, last in trials)


def _ended(
    desk: Desk, number: int, script: Script, index: int
) -> tuple[list[str | None], set[int], int]:
    """How a trial's runs ended, the runs whose metrics stand, and the last step."""
    rows = trial_metrics(desk.trial_dir(number, index), "validation")
    rows = [row for row in rows if script.metric in row.metrics]
    steps = [row.steps for row in rows]
    assert steps == sorted(set(steps))
    return desk.outcomes(number, index), {row.run for row in rows}, steps[-1]
