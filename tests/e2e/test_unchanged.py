"""Scripts in the form in which others publish them: examples/unchanged, without a line for us."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet

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


SCRIPTS = [
    Script("hydra", "val/loss", 20, 60, "hydra"),
    Script("nanogpt", "loss", 200, 600),
    Script("timm", "top1", 8, 29),
    Script("hf_trainer", "eval/accuracy", 100, 288, "hugging_face"),
    Script("lightning", "val_acc", 200, 959, "lightning"),
    Script("wandb", "val/loss", 20, 59),
    Script("mlflow", "val_loss", 30, 99),
    Script("keras", "val_loss", 10, 39, "keras"),
]
IN_EACH_RUN = 2


def _parameters() -> list[ParameterSet]:
    return [
        pytest.param(one, id=one.name, marks=[pytest.mark.nightly] if index >= IN_EACH_RUN else [])
        for index, one in enumerate(SCRIPTS)
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
        "searcher.max_trials=1",
        "max_restarts=0",
    )
    desk.wait_for_steps(number, script.held_at)
    high = make_room(desk)
    site.wait_state(high, "RUNNING", "COMPLETED")
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert desk.outcomes(number) == ["preempted", "completed"]
    rows = [row for row in desk.metrics(number, "validation") if script.metric in row.metrics]
    steps = [row.steps for row in rows]
    assert steps == sorted(set(steps)) and steps[-1] == script.last
    assert {row.run for row in rows} == {1, 2}, "the second run goes on where the first has saved"
