"""How a trial's slots become nodes, tasks and generic resources: the original's table.

Three improvements, each only where the cluster's limits are known:

- Without `slots_per_node`, the original spreads a CPU trial, or a GPU trial where Slurm does not
  count GPUs per job, over one node per slot. Here it gets as few equal nodes as the partition's
  largest node allows.
- Where Slurm counts GPUs per job (`--gpus`), it may deal 4 GPUs as 3 + 1, and a step on unequal
  nodes cannot even start. A trial that fits one node gets one node; a larger one gets equal nodes.
- More slots than the partition's nodes can hold in equal parts is an error, not an endless wait.
"""

from __future__ import annotations

from detslurm.slurm.interface import PartitionLimits
from detslurm.slurm.request import Layout


class PlanError(Exception):
    """The request can't be met; the message proposes a change."""


def layout(
    slots: int,
    slot_type: str,
    *,
    slots_per_node: int | None = None,
    gpu_type: str | None = None,
    gres: bool = True,
    tres: bool = True,
    single_node: bool = False,
    limits: PartitionLimits | None = None,
) -> Layout:
    """The options for one trial of `slots` slots of that type."""
    if slots == 0:
        return Layout(ntasks=1, cpus_per_task=1)
    known = slots if single_node else slots_per_node
    if slot_type == "cpu":
        each = known or _fitting(slots, limits.cpus_per_node if limits else None, "CPUs") or 1
        nodes = _equal_nodes(slots, each)
        return Layout(nodes=nodes, ntasks=nodes, cpus_per_task=slots // nodes)
    prefix = f"{gpu_type}:" if gpu_type else ""
    if tres and gres:
        return _by_tres(slots, known, prefix, limits)
    counted = limits.gpus_per_node if limits is not None and gres else None
    nodes = _equal_nodes(slots, known or _fitting(slots, counted, "GPUs") or 1)
    request = f"gpu:{prefix}{slots // nodes}" if gres else None
    return Layout(nodes=nodes, ntasks=nodes, gres=request)


def _by_tres(
    slots: int, slots_per_node: int | None, prefix: str, limits: PartitionLimits | None
) -> Layout:
    each = slots_per_node or _fitting(slots, limits.gpus_per_node if limits else None, "GPUs")
    if each is None:  # nothing known: Slurm chooses
        return Layout(gpus=f"{prefix}{slots}", nodes=1, max_nodes=slots, ntasks_per_node=1)
    nodes = _equal_nodes(slots, each)
    if nodes == 1 and slots_per_node is None:
        return Layout(gpus=f"{prefix}{slots}", nodes=1, ntasks_per_node=1)
    return Layout(nodes=nodes, ntasks=nodes, gpus_per_task=f"{prefix}{slots // nodes}")


def _equal_nodes(slots: int, each: int) -> int:
    """How many nodes with `each` slots; fewer slots than that are one node's."""
    if slots <= each:
        return 1
    if slots % each:
        raise PlanError(
            f"resources.slots_per_trial ({slots}) is not a multiple of slurm.slots_per_node"
            f" ({each}): every node of a trial must get the same number of slots"
        )
    return slots // each


def _fitting(slots: int, largest: int | None, what: str) -> int | None:
    """Slots per node when as few equal nodes as possible are used; None when unknown."""
    if not largest:
        return None
    return max(each for each in range(1, min(slots, largest) + 1) if slots % each == 0)
