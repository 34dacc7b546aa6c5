"""Other projects' launchers, as people type them: a port of the run, its nodes, and preemption."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.beside import hugging_face, lightning
from tests.cluster import Cluster
from tests.cluster.spec import LIGHT_STARTS
from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room

__all__ = ["hugging_face", "lightning"]

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LIGHT = [f"{name}={value}" for name, value in LIGHT_STARTS.items()]
TWO_SLOTS = ("resources.slots_per_trial=2", "slurm.slots_per_node=2", "max_restarts=0")
TWO_NODES = ("resources.slots_per_trial=4", "slurm.slots_per_node=2", "max_restarts=0")
ON_ONE_NODE = "slurm.sbatch_args=[--nodelist=n1]"

# It knows torch alone, and saves at SIGTERM, as a script for a workstation or any batch system.
TRAIN = """\
    import os, pathlib, signal, sys, time
    import torch
    import torch.distributed as dist

    def show(line):
        os.write(1, f"{line}\\n".encode())  # at once: ranks have one pipe

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    signals = []
    signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
    last = pathlib.Path(sys.argv[1])
    begun = torch.tensor(int(last.read_text()) if last.exists() else 0)
    dist.broadcast(begun, 0)
    for epoch in range(int(begun), 4):
        total = torch.ones(1)
        dist.all_reduce(total)
        show(f"rank {rank} of {int(total)} epoch {epoch} at {os.environ['MASTER_PORT']}")
        while epoch == 2 and not begun and len(sys.argv) > 2 and not signals:
            time.sleep(0.05)
        if signals:
            time.sleep(2)  # longer than a launcher needs to send its own
            if rank == 0:
                last.write_text(str(epoch))
            show(f"rank {rank} saved after {len(signals)} signal")
            dist.barrier()
            os._exit(1)
    dist.destroy_process_group()
    """


def with_variables(*variables: str) -> str:
    return f"environment.environment_variables={[*LIGHT, *variables]}"


def entrypoint(command: str) -> str:
    return f"entrypoint={command}"


def test_two_torchruns_meet_each_on_its_own_port_and_outlive_a_preemption(
    desk: Desk, site: Cluster
) -> None:
    """On one node at once, by each backend. Slurm's SIGTERM comes once to each rank, which torchrun
    lets save; no restart is used."""
    config = desk.project(TRAIN)
    low = "resources.resource_pool=low"
    forms = ("", "--rdzv_backend=c10d ")
    numbers = [
        desk.submit(
            config, *TWO_SLOTS, ON_ONE_NODE, low, with_variables(),
            entrypoint(f"torchrun {form}--nproc_per_node=2 train.py $HOME/last-{index} hold"),
        )
        for index, form in enumerate(forms)
    ]  # fmt: skip
    for number in numbers:
        desk.wait_for_log(number, "rank 1 of 2 epoch 2")
    high = make_room(desk)
    site.wait_state(high, "RUNNING", "COMPLETED")
    ports = set()
    for number in numbers:
        desk.wait_for_state(number, "COMPLETED", "ERROR")
        assert desk.outcomes(number) == ["preempted", "completed"]
        log = desk.log(number)
        assert log.count("saved after 1 signal") == 2
        assert "SignalException" not in log
        assert "rank 0 of 2 epoch 3" in log
        ports |= set(re.findall(r"rank 0 of 2 epoch 0 at (\d+)", log))
    assert len(ports) == 2


# Ranks that each launcher starts, on two nodes: they sum to the number of all of them.
COUNTS = """\
    import os
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    os.write(1, f"rank {dist.get_rank()} of {int(total)}\\n".encode())
    dist.destroy_process_group()
    """


@pytest.mark.nightly
@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc_per_node=2 train.py",
        "python3 -m accelerate.commands.launch train.py",
        "python3 -m torch.distributed.run --rdzv-backend=c10d --nproc-per-node=2 train.py",
        "deepspeed --no_local_rank train.py",
    ],
)
def test_ranks_on_two_nodes_meet(desk: Desk, hugging_face: Path, command: str) -> None:
    """Without an option or a variable for the nodes."""
    more = ["DS_ACCELERATOR=cpu"]
    if "accelerate" in command:
        more = [f"PYTHONPATH={hugging_face}"]
    config = desk.project(COUNTS)
    variables = with_variables(*more)
    number = desk.submit(config, *TWO_NODES, variables, entrypoint(command))
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert desk.outcomes(number) == ["completed"]
    log = desk.log(number)
    assert [f"rank {rank} of 4" in log for rank in range(4)] == [True] * 4


FITS = """\
    import os
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch.utils.data import DataLoader, TensorDataset

    class Net(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, index):
            return self.layer(batch[0]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_end(self):
            total = self.all_gather(torch.ones(1)).sum()
            os.write(1, f"rank {self.global_rank} of {int(total)}\\n".encode())

    trainer = Trainer(
        accelerator="cpu", devices=2, num_nodes=NODES, max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
    )
    trainer.fit(Net(), DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4))
    """


@pytest.mark.nightly
@pytest.mark.parametrize("nodes", [1, 2])
def test_lightning_starts_its_own_ranks(desk: Desk, lightning: Path, nodes: int) -> None:
    """It does not take the step of the node agents for its launcher."""
    config = desk.project(FITS.replace("NODES", str(nodes)))
    options = TWO_NODES if nodes == 2 else TWO_SLOTS
    number = desk.submit(config, *options, with_variables(f"PYTHONPATH={lightning}"))
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert desk.outcomes(number) == ["completed"]
    log = desk.log(number)
    assert [f"rank {n} of {2 * nodes}" in log for n in range(2 * nodes)] == [True] * 2 * nodes
