"""This machine's resources: CPUs and GPUs."""

from __future__ import annotations

import os
import subprocess

from detslurm._base import contract
from detslurm.slurm.allocation import visible_gpus
from detslurm.slurm.local.policy import Slots


def machine_slots() -> Slots:
    """CPUs this process may use and GPUs it may see; both can be declared in the environment."""
    declared = os.environ.get(contract.LOCAL_CPUS, "")
    cpus = int(declared) if declared.isdigit() else len(os.sched_getaffinity(0))
    return Slots(max(1, cpus), _gpus())


def _gpus() -> tuple[str, ...]:
    declared = os.environ.get(contract.LOCAL_GPUS)
    if declared is not None:
        return tuple(str(index) for index in range(int(declared or 0)))
    if "CUDA_VISIBLE_DEVICES" in os.environ or "ROCR_VISIBLE_DEVICES" in os.environ:
        return visible_gpus(os.environ)
    return tuple(str(index) for index in range(_nvidia_count()))


def _nvidia_count() -> int:
    import shutil  # only here: each runner imports this module

    if not shutil.which("nvidia-smi"):
        return 0
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())
