"""`record`: a script that logs to TensorBoard under a node agent, beside the same script alone."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.experiments import Nowhere, agent_command, job_environment
from benchmarks.measure import interleaved, run
from benchmarks.report import Row, Skip
from detslurm.sdk import Client

STEPS = 400
# A step takes milliseconds and logs two values, which is often.
SCRIPT = f"""\
import time
from torch.utils.tensorboard import SummaryWriter
import torch

torch.set_num_threads(1)
matrix = torch.ones(600, 600)
writer = SummaryWriter("runs")
for step in range({STEPS} + 100):
    if step == 100:
        began = time.perf_counter()
    matrix @ matrix
    writer.add_scalar("train/loss", 0.5, step)
    writer.add_scalar("lr", 0.5, step)
print("took", time.perf_counter() - began)
"""


def measure(bench: Bench) -> Iterator[Row]:
    """Its loop, once Python has imported torch and the recorder is there."""
    if not all(map(importlib.util.find_spec, ("torch", "tensorboard"))):
        raise Skip("not installed: torch, tensorboard")
    ours, alone = interleaved(lambda: _recorded(bench), lambda: _alone(bench), rounds=5)
    yield Row(
        what="a script with `record`, a step", ours=ours * (1000 / STEPS), unit="ms",
        anchor=alone * (1000 / STEPS), peer="the script alone", most_ratio=1.02,
    )  # fmt: skip


def _seconds(output: str) -> float:
    found = re.search(r"took ([\d.]+)", output)
    assert found is not None, output
    return float(found.group(1))


def _alone(bench: Bench) -> float:
    folder = bench.folder()
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, str(folder / "train.py")]
    return _seconds(run(command, bench.environment(folder), cwd=folder).output)


def _recorded(bench: Bench) -> float:
    folder = bench.folder()
    code, root = folder / "code", folder / "store"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    config = {
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "val/loss"},
        "slurm": {"slot_type": "cpu"},
        "record": ["tensorboard"],
    }
    client = Client(root, connect=lambda name: Nowhere(root))
    experiment = client.store.experiment(client.submit(config, code).id)
    environment = job_environment(bench.environment(folder))
    return _agent(agent_command(experiment), environment, folder)


def _agent(command: list[str], environment: dict[str, str], folder: Path) -> float:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, cwd=folder, stdin=pipe, stdout=pipe) as agent:
        assert agent.stdout is not None
        return _seconds(agent.stdout.read().decode())
