"""Other projects' launchers, as people type them: a port of the run, its nodes, and preemption."""

from __future__ import annotations

import re

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
        print("rank", rank, "of", int(total), "epoch", epoch, "at", os.environ["MASTER_PORT"],
              flush=True)
        while epoch == 2 and not begun and len(sys.argv) > 2 and not signals:
            time.sleep(0.05)
        if signals:
            time.sleep(2)  # longer than a launcher needs to send its own
            if rank == 0:
                last.write_text(str(epoch))
            print("rank", rank, "saved after", len(signals), "signal", flush=True)
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
        print(log)
        assert log.count("saved after 1 signal") == 2
        assert "SignalException" not in log
        assert "rank 0 of 2 epoch 3" in log
        ports |= set(re.findall(r"rank 0 of 2 epoch 0 at (\d+)", log))
    assert len(ports) == 2
