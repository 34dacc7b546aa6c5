"""Which nodes and slots a launcher has to fill, and where their processes meet."""

from __future__ import annotations

import os
from dataclasses import dataclass

from detslurm._info import ClusterInfo
from detslurm.exec.environment import PORT_ENV


@dataclass(frozen=True)
class Nodes:
    """The nodes of this run as this one sees them."""

    addrs: tuple[str, ...]
    rank: int
    slots: int
    port: int | None = None

    @property
    def chief(self) -> str:
        """The address of the first node."""
        return self.addrs[0]

    @property
    def several(self) -> bool:
        return len(self.addrs) > 1


def nodes_of(info: ClusterInfo) -> Nodes:
    """The nodes of a task, from what the cluster says of it."""
    port = os.environ.get(PORT_ENV)
    return Nodes(
        addrs=tuple(info.container_addrs),
        rank=info.container_rank,
        slots=len(info.slot_ids),
        port=int(port) if port else None,
    )
