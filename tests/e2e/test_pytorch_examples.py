"""The PyTorch examples train on the cluster: one slot and several nodes."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml

from detslurm.store import TrialView
from tests.e2e.conftest import copy_example
from tests.e2e.desk import EXAMPLES, Desk
from tests.e2e.test_main_job import make_room
from tests.pytorch.managed import Managed

pytestmark = pytest.mark.cluster

# Else the seed would be the time, and every run of these tests another training.
SEED = "reproducibility.experiment_seed=1"


def submit(desk: Desk, example: str, config: str, *args: str, length: int | None = None) -> int:
    """Submit an example; `length` takes the place of the one in its entrypoint."""
    assert desk.user.cwd is not None
    folder = desk.user.cwd / example
    if not folder.exists():
        copy_example(desk, example)
    if length is not None:
        args = (*args, f"entrypoint={json.dumps(_shorter(folder / config, length))}")
    return desk.submit(folder / config, SEED, *args)  # the later of two settings counts


def _shorter(config: Path, length: int) -> str:
    words = str(yaml.safe_load(config.read_text())["entrypoint"]).split()
    return " ".join([*words[:-1], str(length)])


def validations(desk: Desk, number: int, metric: str) -> list[tuple[int, float]]:
    """Steps and values of a metric, when the experiment has run through."""
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
    return [(row.steps, row.metrics[metric]) for row in desk.metrics(number, "validation")]


def uninterrupted(
    trial: TrialView, example: str, length: int, metric: str, alone: Managed
) -> list[tuple[int, float]]:
    """The validations of the same trial, trained in this process to the end in one go."""
    folder = EXAMPLES / example
    with pytest.MonkeyPatch.context() as patch, alone.run(trial.hparams, trial.seed or 0):
        patch.syspath_prepend(str(folder))
        patch.setattr(sys, "argv", ["train.py", str(length)])
        try:
            runpy.run_path(str(folder / "train.py"), run_name="__main__")
        finally:
            for file in folder.glob("*.py"):  # other examples have modules of these names
                sys.modules.pop(file.stem, None)
    return [(row.steps, row.metrics[metric]) for row in alone.metrics("validation")]


@pytest.mark.nightly
def test_digits_by_script(desk: Desk) -> None:
    """The script trains to over 95 %, validates after every epoch, and its log tells all of it."""
    number = submit(desk, "pytorch_digits", "const.yaml")
    accuracies = validations(desk, number, "accuracy")
    assert [steps for steps, _ in accuracies] == [47 * epoch for epoch in range(1, 11)]
    assert accuracies[-1][1] > 0.95
    assert re.search(r"\|\| detslurm: batch 470 of 470 \(epoch 10.0\): loss 0", desk.log(number))
    assert "|| detslurm: validation after batch 470: validation_loss 0" in desk.log(number)


def test_what_one_rank_raises(desk: Desk) -> None:
    """Describe ends with that, not with what torchrun or the other rank say of it."""
    model = copy_example(desk, "pytorch_digits") / "model_def.py"
    fails = "if batch_idx == 5 and self.context.distributed.rank == 1: raise KeyError('image 815')"
    batch = "        images, labels = batch\n"
    model.write_text(model.read_text().replace(batch, f"{batch}        {fails}\n", 1))
    number = submit(desk, "pytorch_digits", "distributed.yaml", "max_restarts=0")
    desk.wait_for_state(number, "ERROR")
    described = desk.run("experiment", "describe", str(number)).stdout
    assert described.rstrip().endswith("KeyError: 'image 815'")
    assert "ChildFailedError" not in described and "ChildFailedError" in desk.log(number)


@pytest.mark.nightly
def test_two_nodes_read_one_file(desk: Desk) -> None:
    """A rank on each of two nodes reads the HDF5 file through a worker; they learn together."""
    shape = ("resources.slots_per_trial=2", "slurm.slots_per_node=1")
    number = submit(desk, "pytorch_hdf5", "distributed.yaml", *shape, length=2)
    accuracies = validations(desk, number, "accuracy")
    # 62 whole batches of 64 records.
    assert [steps for steps, _ in accuracies] == [31, 62]
    assert accuracies[-1][1] > 0.7


# In its first run the trial waits in the middle of the first epoch until it is to leave.
HELD = """\
        preempt = self.context._core.preempt
        first = det.get_cluster_info().latest_checkpoint is None
        while first and batch_idx == 105 and not preempt.should_preempt(auto_ack=False):
            time.sleep(0.05)
"""


def test_preempted_in_mid_epoch_with_workers(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that reads the file outlives Slurm's signal; the trial goes on with the very next
    batch, and ends as if nothing had happened."""
    settings = ("reproducibility.experiment_seed=3", "resources.resource_pool=low")
    model = copy_example(desk, "pytorch_hdf5") / "model_def.py"
    head, signature, body = model.read_text().partition("batch_idx):\n")
    model.write_text("import time\nimport detslurm as det\n" + head + signature + HELD + body)
    records = model.with_name("mnist.h5")  # made here once, and not by each run
    runpy.run_path(str(model.with_name("make_data.py")))["main"](str(records))
    number = submit(desk, "pytorch_hdf5", "const.yaml", *settings, length=2)
    desk.wait_for_steps(number, 100)
    make_room(desk)
    accuracies = validations(desk, number, "accuracy")
    assert [steps for steps, _ in accuracies] == [125, 250]
    assert desk.outcomes(number) == ["preempted", "completed"]
    assert desk.trial(number).runs[1].resumed_steps == 106
    assert "killed by signal" not in desk.log(number)
    searcher = desk.experiment(number).config()["searcher"]
    config = {"searcher": searcher, "data": {"file": str(records)}, "hyperparameters": {}}
    alone = Managed(tmp_path, monkeypatch, config)
    assert uninterrupted(desk.trial(number), "pytorch_hdf5", 2, "accuracy", alone) == accuracies


@pytest.mark.nightly
def test_text(desk: Desk) -> None:
    """The transformer learns from the first batches on, in two processes."""
    number = submit(desk, "pytorch_text", "distributed.yaml", length=32)
    bits = validations(desk, number, "bits_per_byte")
    assert [steps for steps, _ in bits] == list(range(4, 33, 4))
    assert bits[-1][1] < bits[0][1] < 8.5
