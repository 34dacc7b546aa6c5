"""Steps on several real nodes: what the runner and its node agents build on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.bench import Bench

STEPPER = str(Path(__file__).with_name("stepper.py"))


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ({"nodes": 3, "ntasks": 3, "cpus_per_task": 2, "sbatch_args": ("--mem-per-cpu=20",)}, ""),
        ({"nodes": 3, "ntasks": 3, "gres": "gpu:2", "cpus_per_task": None}, "0,1"),
        ({"nodes": 3, "ntasks": 3, "gpus_per_task": "3", "cpus_per_task": None}, "0,1,2"),
        (
            {"nodes": 3, "ntasks": None, "ntasks_per_node": 1, "gpus": "12", "cpus_per_task": None},
            "0,1,2,3",
        ),
    ],
    ids=["cpu", "gres", "gpus-per-task", "gpus"],
)
def test_a_step_spans_all_nodes_and_talks(real: Bench, asked: dict[str, Any], gpus: str) -> None:
    """One agent a node sees all the node's GPUs, and the job's CPUs a task; a word reaches every
    node; lines stay whole."""
    request = real.request(**asked).with_changes(command=(sys.executable, STEPPER))
    job = real.cluster.submit(request)
    info = real.wait_state(job, "COMPLETED", "FAILED", timeout=240)
    output = (real.folder / f"slurm-{job}.out").read_text()
    assert info.state == "COMPLETED", output
    seen = json.loads((real.folder / f"{job}.json").read_text())
    nodes = ["0", "1", "2"]
    cpus = ["2"] if asked["cpus_per_task"] else []
    assert sorted(seen["hello"]) == [[n, *([gpus] if gpus else []), "yes", *cpus] for n in nodes]
    assert sorted(w[0] for w in seen["heard"] if w[1] == "preempt") == nodes
    assert (seen["long"], seen["partial"], seen["bent"], seen["exit"]) == (900, 3, 0, 0)
