"""The PyTorch examples train on the cluster: one slot and several nodes, by script and by class."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import copy_example
from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room

pytestmark = pytest.mark.cluster

ONE_TRIAL = (
    "searcher={name: single, metric: accuracy, smaller_is_better: false, max_length: {epochs: 2}}"
)


def submit(desk: Desk, example: str, config: str, *args: str, length: int | None = None) -> int:
    """Submit an example; `length` takes the place of the one in its entrypoint."""
    assert desk.user.cwd is not None
    folder = desk.user.cwd / example
    if not folder.exists():
        copy_example(desk, example)
    if length is not None:
        args = (*args, f"entrypoint={json.dumps(_shorter(folder / config, length))}")
    return desk.submit(folder / config, *args)


def _shorter(config: Path, length: int) -> str:
    words = str(yaml.safe_load(config.read_text())["entrypoint"]).split()
    return " ".join([*words[:-1], str(length)])


def validations(desk: Desk, number: int, metric: str) -> list[tuple[int, float]]:
    """Steps and values of a metric, when the experiment has run through."""
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
    return [(row.steps, row.metrics[metric]) for row in desk.metrics(number, "validation")]


def test_digits_by_script(desk: Desk) -> None:
    """The script trains to over 95 %, and validates after every epoch."""
    accuracies = validations(desk, submit(desk, "pytorch_digits", "const.yaml"), "accuracy")
    assert [steps for steps, _ in accuracies] == [47 * epoch for epoch in range(1, 11)]
    assert accuracies[-1][1] > 0.95


def test_digits_by_class(desk: Desk) -> None:
    """The class alone trains by the configuration, and under Determined's name."""
    model = copy_example(desk, "pytorch_digits") / "model_def.py"
    model.write_text(model.read_text().replace("from detslurm import", "from determined import"))
    point = {"learning_rate": 0.003, "channels": 8, "dropout": 0.1}
    settings = [f"hyperparameters.{name}={value}" for name, value in point.items()]
    number = submit(desk, "pytorch_digits", "adaptive.yaml", ONE_TRIAL, *settings)
    assert [steps for steps, _ in validations(desk, number, "accuracy")] == [47, 94]


def test_four_ranks_read_one_file(desk: Desk) -> None:
    """Four ranks on two nodes read the HDF5 file through workers, and learn from it together."""
    number = submit(desk, "pytorch_hdf5", "distributed.yaml", length=2)
    accuracies = validations(desk, number, "accuracy")
    # 125 batches of 32 records: the first rank has one more than the others.
    assert [steps for steps, _ in accuracies] == [32, 64]
    assert accuracies[-1][1] > 0.7


def test_preempted_in_mid_epoch_with_workers(desk: Desk) -> None:
    """The worker that reads the file outlives Slurm's signal; the trial goes on with the very next
    batch, and ends as if nothing had happened."""
    settings = ("reproducibility.experiment_seed=3", "resources.resource_pool=low")
    number = submit(desk, "pytorch_hdf5", "const.yaml", *settings, length=20)
    desk.wait_for_steps(number, 100)
    make_room(desk)
    undisturbed = submit(desk, "pytorch_hdf5", "const.yaml", *settings, length=20)
    accuracies = validations(desk, number, "accuracy")
    assert [steps for steps, _ in accuracies] == [125 * epoch for epoch in range(1, 21)]
    assert desk.outcomes(number) == ["preempted", "completed"]
    assert desk.trial(number).runs[1].resumed_steps > 0
    assert "killed by signal" not in desk.log(number)
    assert validations(desk, undisturbed, "accuracy") == accuracies


def test_text(desk: Desk) -> None:
    """The transformer learns from the first batches on, in two processes."""
    number = submit(desk, "pytorch_text", "distributed.yaml", length=32)
    bits = validations(desk, number, "bits_per_byte")
    assert [steps for steps, _ in bits] == list(range(4, 33, 4))
    assert bits[-1][1] < bits[0][1] < 8.5
