"""Agents and slots: the nodes of a cluster, and what uses them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from detslurm.slurm import JobInfo, NodeInfo

SlotState = Literal["USED", "FREE", "UNAVAILABLE"]


@dataclass(frozen=True, kw_only=True)
class NodeSlots:
    """Slots of a node that are in the same state: "USED", "FREE", or "UNAVAILABLE".

    Attributes:
        slot_ids: The indices of the GPUs; () for CPUs, and where the site does not know them.
        device: The types of the GPUs, as far as they have names.
        jobs: The jobs that run on the node, if these slots are in use.
    """

    agent: str
    state: SlotState
    count: int
    slot_ids: tuple[int, ...]
    slot_type: str
    device: str
    resource_pools: tuple[str, ...]
    jobs: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return them as plain data."""
        return asdict(self)


def slots_of(nodes: Iterable[NodeInfo], jobs: Iterable[JobInfo]) -> list[NodeSlots]:
    """The slots of these nodes, those of a node that are in use first."""
    on_node: dict[str, list[str]] = {}
    for job in jobs:
        for name in job.nodes if job.running else ():
            on_node.setdefault(name, []).append(job.ref)
    return [one for node in nodes for one in _of_node(node, tuple(on_node.get(node.name, ())))]


def _of_node(node: NodeInfo, jobs: tuple[str, ...]) -> Iterator[NodeSlots]:
    used = node.slots_used
    idle: SlotState = "FREE" if node.available else "UNAVAILABLE"
    known = node.gpus > 0 and len(node.gpus_in_use) == used
    ids = {
        "USED": node.gpus_in_use if known else (),
        idle: tuple(n for n in range(node.gpus) if n not in node.gpus_in_use) if known else (),
    }
    states: tuple[tuple[SlotState, int], ...] = (("USED", used), (idle, node.slots - used))
    for state, count in states:
        if count > 0:
            yield NodeSlots(
                agent=node.name,
                state=state,
                count=count,
                slot_ids=ids[state],
                slot_type="cuda" if node.gpus else "cpu",
                device=",".join(node.gpu_types),
                resource_pools=node.partitions,
                jobs=jobs if state == "USED" else (),
            )
