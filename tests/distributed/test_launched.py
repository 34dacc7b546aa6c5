"""Ranks that other libraries' launchers have started."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.distributed.ranks import free_port
from tests.distributed.test_mpi import done, mpirun, needs_mpirun, pytestmark
from tests.light import LIGHT

__all__ = ["pytestmark"]

REPOSITORY = Path(__file__).resolve().parents[2]


def deepspeed_node(number: int, port: int) -> subprocess.Popen[str]:
    """DeepSpeed's own launcher of one of two nodes, with 2 and 1 slots."""
    world = base64.urlsafe_b64encode(json.dumps({"n0": [0, 1], "n1": [0]}).encode()).decode()
    argv = [sys.executable, "-m", "deepspeed.launcher.launch", f"--world_info={world}"]
    argv += [f"--node_rank={number}", "--master_addr=127.0.0.1", f"--master_port={port}"]
    return subprocess.Popen(
        [*argv, "--module", "tests.distributed.deepspeed_rank"],
        cwd=REPOSITORY,
        env=os.environ | LIGHT | {"DS_ACCELERATOR": "cpu", "DET_CHIEF_IP": "127.0.0.1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_from_deepspeed() -> None:
    """The ranks of DeepSpeed's launcher, on two nodes of different sizes."""
    port = free_port()
    nodes = [deepspeed_node(number, port) for number in range(2)]
    output = "".join(node.communicate(timeout=300)[0] for node in nodes)
    assert [node.returncode for node in nodes] == [0, 0], output
    assert done(output) == ["rank=0 of 3 node=0", "rank=1 of 3 node=0", "rank=2 of 3 node=1"]


@needs_mpirun
def test_from_horovod(horovod: None) -> None:
    """Ranks and sizes as `hvd` tells them. Processes that each take themselves for the only one
    learn why."""
    rank = [sys.executable, "-m", "tests.distributed.horovod_rank"]
    result = mpirun(2, rank=rank)
    assert done(result.stdout) == [f"rank={i} of 2 node=0" for i in range(2)], result.stdout
    lost = subprocess.run(
        rank,
        cwd=REPOSITORY,
        env=os.environ | {"PMI_RANK": "0", "PMI_SIZE": "2"},
        capture_output=True,
        text=True,
    )
    assert "Horovod has 1 process, but 2 were started" in lost.stderr
