"""A model that `fully_shard()` splits up over two nodes of the suite's cluster."""

from __future__ import annotations

import pytest

from detslurm.store.reading import run_rows
from tests.e2e.desk import Desk

pytestmark = pytest.mark.cluster

MODEL = """\
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from detslurm import pytorch

    class Trial(pytorch.PyTorchTrial):
        def __init__(self, context):
            self.context = context
            net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 1))
            for layer in (net[0], net[3], net):
                fully_shard(layer)
            self.model = context.wrap_model(net)
            self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters()))

        def data(self, size):
            numbers = torch.Generator().manual_seed(1)
            x = torch.randn(size, 8, generator=numbers)
            y = x.prod(1, keepdim=True)
            data = torch.utils.data.TensorDataset(x, y)
            return pytorch.DataLoader(data, batch_size=4, shuffle=True)

        def build_training_data_loader(self):
            return self.data(104)

        def build_validation_data_loader(self):
            return self.data(36)  # 9 batches for 2 slots

        def train_batch(self, batch, epoch_idx, batch_idx):
            if batch_idx == 17 and self.context.get_initial_batch() == 0:
                raise RuntimeError("this node has a problem")
            x, y = batch
            loss = nn.functional.mse_loss(self.model(x), y)
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss": loss}

        def evaluate_batch(self, batch):
            x, y = batch
            return {"error": nn.functional.mse_loss(self.model(x), y)}
"""

CONFIG = """\
    name: sharded
    entrypoint: model_def:Trial
    hyperparameters: {global_batch_size: 16}
    searcher: {name: single, metric: error, max_length: {batches: 20}}
    resources: {slots_per_trial: 2}
    slurm: {slot_type: cpu, slots_per_node: 1}
    min_checkpoint_period: {batches: 10}
    min_validation_period: {batches: 4}
    checkpoint_policy: none
    scheduling_unit: 1
    max_restarts: 1
    reproducibility: {experiment_seed: 5}
"""


def test_two_nodes_go_on_from_their_parts(desk: Desk) -> None:
    """A restart takes up all ranks' parts: what it trains and validates once more is, to the bit,
    what the run that failed has reported there."""
    desk.write("model_def.py", MODEL)
    number = desk.submit(desk.write("experiment.yaml", CONFIG))
    desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number) == ["restart", "completed"]
    assert desk.trial(number).runs[1].resumed_steps == 10
    trial = desk.trial_dir(number)
    files = trial.log_files(trial.runs())
    for group, steps in (("training", range(1, 21)), ("validation", range(4, 21, 4))):
        first, second = (
            {row.steps: row.metrics for row in run_rows(files[run], group)} for run in (1, 2)
        )
        again = [step for step in steps if 10 < step <= 17]
        assert [first[step] for step in again] == [second[step] for step in again]
        assert [row.steps for row in desk.metrics(number, group)] == list(steps)
    latest = desk.trial(number).latest_checkpoint
    assert latest is not None
    parts = desk.store.path / "checkpoints" / latest.uuid / "sharded"
    assert {file.name for file in parts.iterdir()} == {".metadata"} | {
        f"__{rank}_0.distcp" for rank in range(2)
    }
