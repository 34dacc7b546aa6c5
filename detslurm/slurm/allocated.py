"""How much a job has of its nodes, by the environment of its batch script."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from detslurm.slurm.hostlist import counts_by_node

_MEGABYTE = 1 << 20


class Allocated(NamedTuple):
    """CPUs of all nodes and bytes of memory on each; None where none are known.

    Of nodes with unequal numbers of CPUs the memory is that of the smallest.
    """

    cpus: int | None = None
    memory: int | None = None


def allocated(environ: Mapping[str, str] | None = None) -> Allocated:
    """The resources of the job around this process; nothing is known outside of Slurm."""
    env = os.environ if environ is None else environ
    cpus = counts_by_node(env.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return Allocated(sum(cpus) or None, _memory(env, cpus))


def _memory(env: Mapping[str, str], cpus: list[int]) -> int | None:
    if megabytes := _number(env.get("SLURM_MEM_PER_NODE")):
        return megabytes * _MEGABYTE
    if cpus and (megabytes := _number(env.get("SLURM_MEM_PER_CPU"))):
        return megabytes * min(cpus) * _MEGABYTE
    return None


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
