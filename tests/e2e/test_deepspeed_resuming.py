"""DeepSpeed's engines go on on another number of slots than those that saved them."""

from __future__ import annotations

import pytest

from tests.e2e.desk import Desk
from tests.launchers.workers import needs_deepspeed

pytestmark = [pytest.mark.cluster, pytest.mark.slow, needs_deepspeed]

# Every batch is the same 16 records, whatever the slots are.
MODEL = """\
    import deepspeed
    import torch
    from torch import nn

    from detslurm import pytorch
    from detslurm.pytorch.deepspeed import DeepSpeedTrial


    def config(stage):
        return {
            "train_batch_size": 16,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": stage},
            "optimizer": {"type": "Adam", "params": {"lr": 0.02, "torch_adam": True}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 8}},
        }


    class Trial(DeepSpeedTrial):
        def __init__(self, context):
            self.context, self.engines = context, []
            for stage in (1, 3):
                torch.manual_seed(stage)
                net = nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 1))
                net[0].bias.requires_grad_(False)
                engine, *_ = deepspeed.initialize(
                    model=net,
                    model_parameters=[p for p in net.parameters() if p.requires_grad],
                    config=config(stage),
                )
                self.engines.append(context.wrap_model_engine(engine))

        def data(self):
            numbers = torch.Generator().manual_seed(1)
            x = torch.randn(16, 7, generator=numbers)
            data = torch.utils.data.TensorDataset(x, x.sin().sum(1, keepdim=True))
            size = self.context.get_train_micro_batch_size_per_gpu()
            return pytorch.DataLoader(data, batch_size=size)

        build_training_data_loader = build_validation_data_loader = data

        def losses(self, batches):
            x, y = next(batches)
            return [nn.functional.mse_loss(engine(x), y) for engine in self.engines]

        def train_batch(self, dataloader_iter, epoch_idx, batch_idx):
            losses = self.losses(dataloader_iter)
            for engine, loss in zip(self.engines, losses):
                engine.backward(loss)
                engine.step()
            return {"one": losses[0], "three": losses[1]}

        def evaluate_batch(self, dataloader_iter, batch_idx):
            return {"error": self.losses(dataloader_iter)[0]}
"""

CONFIG = """\
    name: zero
    entrypoint: python3 -m detslurm.launch.deepspeed --trial model_def:Trial
    searcher: {name: single, metric: error, max_length: {batches: 8}}
    resources: {slots_per_trial: 4}
    slurm: {slot_type: cpu, slots_per_node: 2}
    min_checkpoint_period: {batches: 4}
    scheduling_unit: 1
"""


def test_parts_of_four_ranks_go_on_on_other_slots(desk: Desk) -> None:
    """Two nodes by two slots save parts of an engine with ZeRO-1 and of one with ZeRO-3. One node
    with two slots, one or four goes on from batch 4 as those four themselves did."""
    desk.write("zero/model_def.py", MODEL)
    config = desk.write("zero/experiment.yaml", CONFIG)
    whole = desk.submit(config)
    desk.wait_for_state(whole, "COMPLETED")
    wanted = [row.metrics for row in desk.metrics(whole, "training")]
    (saved,) = [point.uuid for point in desk.trial(whole).checkpoints if point.steps == 4]
    source = f"searcher.source_checkpoint_uuid={saved}"
    shapes = {(2, 2), (1, 1), (4, 4)}
    numbers = {
        shape: desk.submit(
            config,
            source,
            "searcher.max_length.batches=4",
            f"resources.slots_per_trial={shape[0]}",
            f"slurm.slots_per_node={shape[1]}",
        )
        for shape in shapes
    }
    for (slots, _), number in numbers.items():
        desk.wait_for_state(number, "COMPLETED")
        found = [row.metrics for row in desk.metrics(number, "training")]
        for name in ("one", "three"):
            ours = [row[name] for row in found]
            assert ours == pytest.approx([row[name] for row in wanted[4:]], rel=1e-5), slots
        converted = desk.log(number).count("for another number of ranks")
        assert converted == (2 if slots != 4 else 0)  # once for each engine
    assert not list((desk.store.path / "checkpoints").glob("*.partial"))
