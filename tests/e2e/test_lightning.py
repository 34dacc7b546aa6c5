"""Lightning's Trainer in trials: scripts that only add a callback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.beside import lightning
from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room

__all__ = ["lightning"]

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

# 64 records: 8 steps an epoch. The loader goes on where it was.
SCRIPT = """\
    import os
    import time
    from pathlib import Path
    import torch
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import (
        EarlyStopping, EMAWeightAveraging, ModelCheckpoint,
    )
    from lightning.pytorch.plugins.io import AsyncCheckpointIO
    from torch import nn
    from torch.utils.data import DataLoader
    import determined as det
    from detslurm.lightning import TrialCallback

    class Net(LightningModule):
        def __init__(self, data=Path("data")):  # torch.load() refuses paths
            super().__init__()
            self.save_hyperparameters()
            self.layer = nn.Linear(4, 1)

        def loss(self, batch):
            x, y = batch
            return nn.functional.mse_loss(self.layer(x).squeeze(-1), y)

        def training_step(self, batch, index):
            loss = self.loss(batch)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, index):
            self.log("val_loss", self.loss(batch), sync_dist=True)
            self.log("of_batch", self.loss(batch), on_step=True, on_epoch=False)

        def test_step(self, batch, index):
            self.log("test_loss", self.loss(batch), sync_dist=True)

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
            if not hparams["plateaus"]:
                return optimizer
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=9)
            scheduler = {"scheduler": scheduler, "monitor": "val_loss"}
            return {"optimizer": optimizer, "lr_scheduler": scheduler}

    class Hold(Callback):
        def on_train_batch_end(self, trainer, *args):
            self.hold_at(hparams["hold"])

        def on_validation_batch_end(self, trainer, *args, **more):
            self.hold_at(hparams["hold_validation"])

        def hold_at(self, step):
            if trainer.global_step == step:
                print(f"holds in run {run}", flush=True)
                while not core.preempt.should_preempt():
                    time.sleep(0.05)

    class Loader:
        def __init__(self, count, seed):
            made = torch.Generator().manual_seed(seed)
            x = torch.randn(count, 4, generator=made)
            size = 8 // core.distributed.size
            rank = core.distributed.rank
            shares = [b.chunk(core.distributed.size)[rank] for b in x.split(8)]
            self.batches = [(b, b.sum(1)) for b in shares]
            self.batch_size, self.next = size, 0

        def __len__(self):
            return len(self.batches)

        def __iter__(self):  # Lightning does not ask for more than there is
            for self.next in range(self.next % len(self) + 1, len(self) + 1):
                yield self.batches[self.next - 1]

        def state_dict(self):
            return {"next": self.next}

        def load_state_dict(self, state):
            self.next = state["next"]

    trial = det.get_cluster_info().trial
    hparams, run = trial.hparams, trial._trial_run_id
    for name in ("hold", "hold_validation"):  # of each run, and of all after the last
        hparams[name] = hparams[name][:run][-1]
    torch.manual_seed(1)
    ranks = None
    if "RANK" in os.environ:
        ranks = det.core.DistributedContext.from_torch_distributed()
    with det.core.init(distributed=ranks) as core:
        callback = TrialCallback(core, user_data={"from": "scratch"})
        averages = [EMAWeightAveraging(decay=0.5)] if hparams["averages"] else []
        plugins = [AsyncCheckpointIO()] if hparams["writes_behind"] else []
        trainer = Trainer(
            max_epochs=2, min_epochs=2, max_steps=hparams["max_steps"],
            log_every_n_steps=2, accelerator="cpu",
            devices=core.distributed.size, use_distributed_sampler=False,
            enable_progress_bar=False, logger=hparams["logger"], default_root_dir="out",
            callbacks=[
                Hold(), callback, EarlyStopping("val_loss", patience=9),
                ModelCheckpoint(save_top_k=-1), *averages,
            ],
            plugins=plugins,
        )
        validation = DataLoader(Loader(16, 2).batches, batch_size=None)
        model = Net()
        trainer.fit(model, Loader(64, 1), validation, ckpt_path=callback.ckpt_path)
        if not core.preempt.should_preempt():
            trainer.test(model, validation)
    """
CONFIG = """\
    hyperparameters:
      max_steps: -1
      hold: [0]
      hold_validation: [99]
      averages: false
      plateaus: false
      writes_behind: false
      logger: true
    environment:
      environment_variables: [PYTHONPATH={path}, OMP_NUM_THREADS=1]
    max_restarts: 0
    """


def validations(desk: Desk, number: int) -> list[tuple[int, dict[str, object]]]:
    return [(row.steps, row.metrics) for row in desk.metrics(number, "validation")]


@pytest.mark.nightly
def test_it_goes_on_after_a_preemption(desk: Desk, lightning: Path) -> None:
    """Metrics, checkpoints and progress are the trial's; two ranks preempted in the middle of a
    validation end with the numbers of an undisturbed training, with a callback that averages the
    weights and checkpoints that are written behind training, too. tests/frameworks has the other
    places where a training is left."""
    config = desk.project(SCRIPT, CONFIG.replace("{path}", str(lightning)))
    two = (
        "searcher.metric=val_loss", "resources.slots_per_trial=2",
        "hyperparameters.averages=true", "hyperparameters.writes_behind=true",
        "entrypoint=python3 -m determined.launch.torch_distributed train.py",
    )  # fmt: skip
    whole = desk.submit(config, *two, "hyperparameters.logger=false")
    number = desk.submit(  # with the plateaus the end of a run's training saves once more
        config, *two, "hyperparameters.hold_validation=[8, 99]",
        "hyperparameters.plateaus=true", "hyperparameters.max_steps=16",
        "resources.resource_pool=low",
    )  # fmt: skip
    assert desk.wait_for_state(whole, "COMPLETED", "ERROR") == "COMPLETED", desk.log(whole)
    desk.wait_for_log(number, "holds in run 1")
    make_room(desk)
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
    assert desk.outcomes(number) == ["preempted", "completed"]
    trial, undisturbed = desk.trial(number), desk.trial(whole)
    assert [run.resumed_steps for run in trial.runs[1:]] == [8]
    assert validations(desk, number) == validations(desk, whole)
    assert [c.steps for c in undisturbed.checkpoints] == [8, 16]
    assert [c.steps for c in trial.checkpoints] == [8, 8, 16, 16]
    assert trial.checkpoints[-1].metadata["user_data"] == {"from": "scratch"}
    for one in (number, whole):
        assert [row.steps for row in desk.metrics(one, "training")] == [*range(2, 17, 2)]
    assert [steps for steps, _ in validations(desk, whole)] == [8, 16]
    assert validations(desk, whole)[0][1].keys() == {"val_loss", "epoch"}
    assert undisturbed.progress == 1.0
    assert [row.steps for row in desk.metrics(whole, "test")] == [16]
