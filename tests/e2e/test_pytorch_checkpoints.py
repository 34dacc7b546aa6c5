"""A Trainer that is killed at every stage of saving, and preempted while it saves."""

from __future__ import annotations

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room

pytestmark = pytest.mark.cluster

# Saves at batch 4, in its first run. At batch 8 run 1 is killed while the file grows, run 2 when it
# is whole and not recorded, run 3 while the file grows in the background; run 4 is preempted
# while it saves in the background. The kernel kills in mid-file, at a limit of its size: another
# process that watches it grow may see it whole at its first look.
SCRIPT = """\
    import os, resource, signal, time
    import torch
    from torch import nn
    import detslurm as det
    from detslurm import pytorch

    info = det.get_cluster_info()
    RUN = info.trial._trial_run_id

    def die_in_mid_file():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)

    def kill(*args):
        print("killed before the record", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    class Trial(pytorch.PyTorchTrial):
        def __init__(self, context):
            self.context = context
            layers = [nn.Linear(400, 400) for _ in range(4)]  # 2.6 MB
            self.model = context.wrap_model(nn.Sequential(*layers))
            self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 1e-4))
            if RUN >= 3:
                context.experimental.save_in_background()

        def build_training_data_loader(self):
            numbers = torch.Generator().manual_seed(1)
            return pytorch.DataLoader(torch.randn(16, 400, generator=numbers), shuffle=True)

        build_validation_data_loader = build_training_data_loader

        def is_leaving(self):
            return self.context._core.preempt.should_preempt(auto_ack=False)

        def wait_to_leave(self):
            while not self.is_leaving():
                time.sleep(0.05)

        def train_batch(self, batch, epoch_idx, batch_idx):
            if batch_idx == 7 and RUN in (1, 3):
                die_in_mid_file()
            if batch_idx == 7 and RUN == 2:
                self.context._core.checkpoint._records.commit = kill
            if batch_idx == 8 and RUN == 3:
                time.sleep(600)  # until the writer, who goes on, is killed
            if batch_idx == 8 and RUN == 4:
                self.wait_to_leave()
            loss = self.model(batch).square().mean()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return loss

        def evaluate_batch(self, batch, batch_idx):
            return {"loss": self.model(batch).square().mean()}

        def build_callbacks(self):
            return {"slow": Slow(self)}

    class Slow(pytorch.PyTorchCallback):
        def __init__(self, trial):
            self.trial = trial

        def on_checkpoint_write_end(self, checkpoint_dir):
            if RUN == 4 and not self.trial.is_leaving():
                print("saves until it is preempted", flush=True)
                self.trial.wait_to_leave()
                time.sleep(1)  # the loop has nothing left to do, and waits

        def on_checkpoint_upload_end(self, uuid):
            print("run", RUN, "has", uuid, flush=True)

    with pytorch.init() as context:
        pytorch.Trainer(Trial(context), context).fit(
            max_length=pytorch.Batch(12),
            checkpoint_period=pytorch.Batch(4),
            reporting_period=pytorch.Batch(1),
            checkpoint_policy="none",
            latest_checkpoint=info.latest_checkpoint,
        )
"""


@pytest.mark.slow
def test_killed_at_every_stage_of_saving(desk: Desk, site: Cluster) -> None:
    """Each run goes on from the last whole checkpoint and removes what another left; leaving
    waits for what is written in the background."""
    config = desk.project(SCRIPT).read_text().replace("max_length: 10", "max_length: {batches: 12}")
    path = desk.write("project/experiment.yaml", config)
    keep_all = "checkpoint_storage.save_trial_latest=9"
    number = desk.submit(path, "resources.resource_pool=low", keep_all)
    desk.wait_for_log(number, "saves until it is preempted")
    before = desk.trial(number)
    assert [c.steps for c in before.checkpoints] == [4]
    high = make_room(desk)
    site.wait_state(high, "RUNNING", "COMPLETED")
    desk.wait_for_state(number, "COMPLETED")

    trial, log = desk.trial(number), desk.log(number)
    assert desk.outcomes(number) == ["restart", "restart", "restart", "preempted", "completed"]
    assert [run.resumed_steps for run in trial.runs] == [0, 4, 4, 4, 9]
    assert [(c.run, c.steps) for c in trial.checkpoints] == [(1, 4), (4, 8), (4, 9), (5, 12)]
    assert [row.steps for row in desk.metrics(number, "training")] == list(range(1, 13))
    storage = desk.store.path / "checkpoints"
    saved = {c.uuid for c in trial.checkpoints}
    assert {p.name for p in storage.iterdir()} - {"tensorboard"} == saved
    assert all(f"has {uuid}" in log for uuid in saved)
    assert log.count("killed before the record") == 1
    for run in (trial.runs[0], trial.runs[2]):
        assert "was killed by SIGXFSZ" in (run.reason or "")
