"""Trial classes on several nodes: PyTorch's DDP, real preemption, the older form of entrypoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.cluster import Cluster
from tests.e2e.conftest import copy_example
from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room
from tests.e2e.test_torch_distributed import LIGHT

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]

MODEL = """\
    import time
    import torch
    from torch import nn
    import determined as det
    from detslurm._base.flag import PreemptFlag
    from determined import pytorch

    class Trial(pytorch.PyTorchTrial):
        def __init__(self, context):
            self.context = context
            hidden = [nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.2)]
            net = nn.Sequential(*hidden, nn.Linear(32, 1))
            self.model = context.wrap_model(net)
            self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters()))
            self.scheduler = context.wrap_lr_scheduler(
                torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 50),
                pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH,
            )
            first = det.get_cluster_info().trial._trial_run_id == 1
            self.waits = first and context.get_hparam("waits")
            self.flag = PreemptFlag.of_this_node()
            self.count = context.wrap_reducer(sum, "records", for_validation=False)

        def data(self, size, shuffle):
            numbers = torch.Generator().manual_seed(1)
            x = torch.randn(size, 8, generator=numbers)
            return pytorch.DataLoader(
                torch.utils.data.TensorDataset(x, x.prod(1, keepdim=True)),
                batch_size=self.context.get_per_slot_batch_size(),
                shuffle=shuffle,
            )

        def build_training_data_loader(self):
            return self.data(104, True)

        def build_validation_data_loader(self):
            return self.data(36, False)

        def train_batch(self, batch, epoch_idx, batch_idx):
            while self.waits and batch_idx == 6 and not self.flag.preempt:
                time.sleep(0.05)
            x, y = batch
            loss = nn.functional.mse_loss(self.model(x), y)
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            self.count.update(len(x))
            return {"loss": loss}

        def evaluate_batch(self, batch):
            x, y = batch
            return {"error": nn.functional.mse_loss(self.model(x), y)}
"""

HARNESS = "python3 -m detslurm.pytorch.harness model_def:"
"""What the launcher starts for a Trial class; where there is one slot, it does without it."""

CONFIG = """\
    name: test
    entrypoint: {entrypoint}
    hyperparameters: {{global_batch_size: 16, waits: {waits}}}
    searcher: {{name: single, metric: error, max_length: {{batches: 40}}}}
    resources: {{slots_per_trial: 2}}
    slurm: {{slot_type: cpu, slots_per_node: 1}}
    optimizations: {{aggregation_frequency: 3}}
    min_validation_period: {{epochs: 2}}
    scheduling_unit: 1
    reproducibility: {{experiment_seed: 5}}
"""


def project(desk: Desk, name: str, entrypoint: str, *, waits: bool) -> Path:
    desk.write(f"{name}/model_def.py", MODEL)
    config = CONFIG.format(entrypoint=entrypoint, waits=str(waits).lower())
    return desk.write(f"{name}/experiment.yaml", config)


def final_weights(desk: Desk, number: int) -> dict[str, torch.Tensor]:
    latest = desk.trial(number).latest_checkpoint
    assert latest is not None and latest.steps == 40
    folder = desk.store.path / "checkpoints"
    state = torch.load(folder / latest.uuid / "state_dict.pth", weights_only=True)
    weights: dict[str, torch.Tensor] = state["models_state_dict"][0]
    return weights


@pytest.mark.slow
def test_nodes_that_were_preempted_end_as_those_that_were_not(desk: Desk, site: Cluster) -> None:
    """Shuffled, with dropout, batch norm, a scheduler and aggregated gradients: every loss and all
    weights are those of two processes on one machine to the last bit, and nothing that was trained
    is lost."""
    assert_preemption_changes_nothing(desk, site, "model_def:Trial")


def test_two_ranks_on_horovod(desk: Desk, site: Cluster, horovod: None) -> None:
    """The same, with Horovod over the MPI of two nodes, which the example asks for, too."""
    example = copy_example(desk, "pytorch_digits") / "horovod.yaml"
    assert "--nodes=2" in desk.run("submit", str(example), "--dry-run").stdout
    launcher = "python3 -m determined.launch.horovod --cycle-time-ms 2"
    entrypoint = f"{launcher} -- --trial model_def:Trial"
    assert_preemption_changes_nothing(desk, site, entrypoint, LIGHT)


def assert_preemption_changes_nothing(
    desk: Desk, site: Cluster, entrypoint: str, *options: str
) -> None:
    """A training that is preempted once, beside one by DDP that isn't, and needs no Slurm."""
    here = ("--cluster", "local", "slurm.slots_per_node=2")
    whole = desk.submit(project(desk, "whole", "model_def:Trial", waits=False), *here, *options)
    held = project(desk, "preempted", entrypoint, waits=True)
    preempted = desk.submit(held, "resources.resource_pool=low", LIGHT)
    desk.wait_for_state(whole, "COMPLETED")
    desk.wait_for_steps(preempted, 6)
    high = make_room(desk)
    site.wait_state(high, "RUNNING", "COMPLETED")
    desk.wait_for_state(preempted, "COMPLETED")

    assert desk.outcomes(preempted) == ["preempted", "completed"], desk.log(preempted)
    assert desk.trial(preempted).runs[1].resumed_steps == 7
    for group in ("training", "validation"):
        ours, theirs = desk.metrics(preempted, group), desk.metrics(whole, group)
        assert [(r.steps, r.metrics) for r in ours] == [(r.steps, r.metrics) for r in theirs]
    # 104 records are 13 batches of 8, 7 of them for the chief: an epoch.
    assert [r.steps for r in desk.metrics(whole, "validation")] == [14, 28, 40]
    assert {r.metrics["records"] for r in desk.metrics(whole, "training")} == {16}
    weights, expected = final_weights(desk, preempted), final_weights(desk, whole)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
