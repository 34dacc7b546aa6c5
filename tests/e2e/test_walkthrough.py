"""The Core API in five steps: every step of the example runs as its README says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from detslurm.store import MetricRow
from tests.e2e.conftest import copy_example
from tests.e2e.desk import EXAMPLES, Desk
from tests.e2e.test_main_job import make_room

pytestmark = pytest.mark.cluster

EXAMPLE = "core_api_walkthrough"
IMAGES, EPOCHS = 640, 2
EPOCH_LENGTH = IMAGES // 64
LIGHT = f"--train-images {IMAGES}"


def configured(step: int) -> dict[str, Any]:
    text = (EXAMPLES / EXAMPLE / f"step{step}.yaml").read_text()
    config: dict[str, Any] = yaml.safe_load(text)
    return config


def light(step: int, epochs: int = EPOCHS) -> list[str]:
    """The step's own settings, with fewer images and epochs."""
    entrypoint = f"{configured(step)['entrypoint']} {LIGHT}"
    if step == 4:
        return [f"entrypoint={json.dumps(entrypoint)}", f"searcher.max_length.epochs={epochs}"]
    return [f"entrypoint={json.dumps(f'{entrypoint} --epochs {epochs}')}"]


def submit(desk: Desk, step: int, *args: str, epochs: int = EPOCHS) -> int:
    folder = desk.user.cwd / EXAMPLE if desk.user.cwd else Path()
    if not folder.exists():
        copy_example(desk, EXAMPLE)
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    return desk.submit(folder / f"step{step}.yaml", *light(step, epochs), *args)


def completed(desk: Desk, number: int, epochs: int = EPOCHS) -> None:
    desk.wait_for_state(number, "COMPLETED")
    assert f"[rank=0] || epoch {epochs - 1}: " in desk.log(number)


def steps(rows: list[MetricRow]) -> list[int]:
    return [row.steps for row in rows]


def test_steps_without_checkpoints(desk: Desk) -> None:
    """Step 0 trains in one process, steps 1 and 2 in two; step 2 reports its metrics."""
    numbers = [submit(desk, step) for step in range(3)]
    for number in numbers:
        completed(desk, number)
    assert "process 0 of 1" in desk.log(numbers[0])
    for number in numbers[1:]:
        assert "[rank=1] || process 1 of 2" in desk.log(number)
    assert [len(desk.metrics(number)) for number in numbers] == [0, 0, 2 * EPOCHS]
    epochs = [EPOCH_LENGTH, 2 * EPOCH_LENGTH]
    training = desk.metrics(numbers[2], "training")
    validation = desk.metrics(numbers[2], "validation")
    assert steps(training) == steps(validation) == epochs
    assert training[1].metrics["loss"] < training[0].metrics["loss"]
    assert set(validation[0].metrics) == {"val_loss", "val_accuracy"}


ASKS = "        if core_context.preempt.should_preempt():\n"
HOLDS = """\
        while latest_checkpoint is None and not core_context.preempt.should_preempt():
            time.sleep(0.05)
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_step_3_is_preempted_and_goes_on(desk: Desk) -> None:
    """Both processes leave after the epoch, and the trial goes on with the next one; under
    Determined's names, too."""
    script = copy_example(desk, EXAMPLE) / "step3_checkpoints.py"
    text = script.read_text()
    edits = {
        ASKS: HOLDS + ASKS,
        "import os\n": "import os, time\n",
        "import detslurm as": "import determined as",
    }
    for old, new in edits.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    script.write_text(text)
    launcher = light(3, epochs=3)[0].replace("detslurm.launch", "determined.launch")
    assert "determined.launch" in launcher
    number = submit(desk, 3, launcher, "resources.resource_pool=low", epochs=3)
    desk.wait_for_steps(number, EPOCH_LENGTH)
    make_room(desk)
    completed(desk, number, epochs=3)
    trial = desk.trial(number)
    assert desk.outcomes(number) == ["preempted", "completed"]
    assert trial.runs[1].resumed_steps == EPOCH_LENGTH
    assert steps(desk.metrics(number, "training")) == [EPOCH_LENGTH * n for n in range(1, 4)]
    assert len(trial.checkpoints) == 3
    assert all(c.metadata["trial_id"] == trial.id for c in trial.checkpoints)


@pytest.mark.nightly
def test_step_4_on_a_machine_without_slurm(desk: Desk) -> None:
    """The length and the learning rate come from the search."""
    number = submit(desk, 4, "--cluster", "local")
    completed(desk, number)
    trial = desk.trial(number)
    assert trial.hparams is not None and 1e-3 <= trial.hparams["lr"] <= 1e-2
    assert trial.progress == 1.0
    assert steps(desk.metrics(number, "validation")) == [EPOCH_LENGTH, 2 * EPOCH_LENGTH]
