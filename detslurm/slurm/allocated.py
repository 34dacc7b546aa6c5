"""How much a job has of its nodes, by the environment of its batch script."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

_CPUS = r"(\d+)(?:\(x(\d+)\))?"
_MEGABYTE = 1 << 20


class Allocated(NamedTuple):
    """CPUs of all nodes and bytes of memory on each; None where none are known.

    Of nodes with unequal numbers of CPUs the memory is that of the smallest.
    """

    cpus: int | None = None
    memory: int | None = None


def allocated(environ: Mapping[str, str] | None = None) -> Allocated:
    """What the job around this process has; nothing is known outside of Slurm."""
    env = os.environ if environ is None else environ
    cpus = cpus_by_node(env.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return Allocated(sum(cpus) or None, _memory(env, cpus))


def cpus_by_node(text: str) -> list[int]:
    """[8, 8, 4] of Slurm's `8(x2),4`; empty for anything else."""
    matches = [re.fullmatch(_CPUS, part) for part in text.split(",")]
    return [int(m[1]) for m in matches if m is not None for _ in range(int(m[2] or 1))]


def _memory(env: Mapping[str, str], cpus: list[int]) -> int | None:
    if megabytes := _number(env.get("SLURM_MEM_PER_NODE")):
        return megabytes * _MEGABYTE
    if cpus and (megabytes := _number(env.get("SLURM_MEM_PER_CPU"))):
        return megabytes * min(cpus) * _MEGABYTE
    return None


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
