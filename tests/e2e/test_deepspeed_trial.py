"""A DeepSpeedTrial on two nodes, two processes on each: preempted, and killed while it saves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room
from tests.launchers.workers import needs_deepspeed

pytestmark = [pytest.mark.cluster, pytest.mark.slow, needs_deepspeed]

MODEL = Path(__file__).with_name("deepspeed_model.py")
CONFIG = """\
    name: test
    entrypoint: {entrypoint}
    hyperparameters: {{disturbed: {disturbed}}}
    searcher: {{name: single, metric: error, max_length: {{batches: 20}}}}
    resources: {{slots_per_trial: 4}}
    slurm: {{slot_type: cpu, slots_per_node: 2}}
    min_checkpoint_period: {{batches: 5}}
    min_validation_period: {{batches: 10}}
    checkpoint_policy: none
    scheduling_unit: 1
    max_restarts: 1
    reproducibility: {{experiment_seed: 5}}
"""
LEGACY = "model_def:Trial"
LAUNCHED = "python3 -m detslurm.launch.deepspeed --trial model_def:Trial"


def project(desk: Desk, name: str, entrypoint: str, *, disturbed: bool) -> Path:
    desk.write(f"{name}/model_def.py", MODEL.read_text())
    config = CONFIG.format(entrypoint=entrypoint, disturbed=str(disturbed).lower())
    return desk.write(f"{name}/experiment.yaml", config)


def weights(desk: Desk, number: int) -> dict[str, bytes]:
    """The model of the last checkpoint, with the parts of all ranks beside it."""
    import torch

    latest = desk.trial(number).latest_checkpoint
    assert latest is not None and latest.steps == 20
    folder = desk.store.path / "checkpoints" / latest.uuid / "model0"
    assert len(list(folder.glob("*zero_pp_rank_*_optim_states.pt"))) == 4
    state = torch.load(folder / "mp_rank_00_model_states.pt", weights_only=False)
    return {name: tensor.numpy().tobytes() for name, tensor in state["module"].items()}


def test_a_disturbed_training_ends_as_one_that_was_not(desk: Desk, site: Cluster) -> None:
    """ZeRO-2, accumulation and dropout on four ranks of two nodes. Preempted, then robbed of a rank
    that had written half of its file of a checkpoint: that one never counts nor remains, the next
    run goes on from the one before, and every loss and all weights are those of a training in one
    go, to the bit; which the older form of entrypoint has started."""
    whole = desk.submit(project(desk, "whole", LEGACY, disturbed=False))
    held = project(desk, "disturbed", LAUNCHED, disturbed=True)
    number = desk.submit(held, "resources.resource_pool=low")
    desk.wait_for_steps(number, 6)
    high = make_room(desk)
    site.wait_state(high, "RUNNING", "COMPLETED")

    for each in (whole, number):
        assert desk.wait_for_state(each, "COMPLETED", "ERROR") == "COMPLETED", desk.log(each)
    trial = desk.trial(number)
    assert [run.outcome for run in trial.runs] == ["preempted", "restart", "completed"]
    assert [run.resumed_steps for run in trial.runs[1:]] == [7, 10]
    assert "was killed by SIGKILL" in (trial.runs[1].reason or "")
    saved = [(checkpoint.run, checkpoint.steps) for checkpoint in trial.checkpoints]
    assert saved == [(1, 5), (1, 7), (2, 10), (3, 15), (3, 20)]
    known = {
        checkpoint.uuid for one in (whole, number) for checkpoint in desk.trial(one).checkpoints
    }
    found = {path.name for path in (desk.store.path / "checkpoints").iterdir()}
    assert found - {"tensorboard"} == known
    for group in ("training", "validation"):
        ours, theirs = desk.metrics(number, group), desk.metrics(whole, group)
        assert [(r.steps, r.metrics) for r in ours] == [(r.steps, r.metrics) for r in theirs]
    assert [r.steps for r in desk.metrics(whole, "training")] == list(range(1, 21))
    assert weights(desk, number) == weights(desk, whole)
