"""The peers of a process in its trial."""

from __future__ import annotations

from typing import Any


class DistributedContext:
    """Rank and size of this process, and simple collectives among the ranks of the trial.

    This version serves trials of one process; more than one raises `NotImplementedError`.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        local_rank: int,
        local_size: int,
        cross_rank: int,
        cross_size: int,
        chief_ip: str | None = None,
        pub_port: int = 12360,
        pull_port: int = 12376,
        port_offset: int = 0,
        force_tcp: bool = False,
    ) -> None:
        if size > 1:
            raise NotImplementedError("trials of several processes are not supported yet")
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.cross_rank = cross_rank
        self.cross_size = cross_size

    @classmethod
    def _single(cls) -> DistributedContext:
        return cls(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)

    def get_rank(self) -> int:
        """The unique id of this process within the trial."""
        return self.rank

    def get_local_rank(self) -> int:
        """The unique id of this process within the trial on this node."""
        return self.local_rank

    def get_size(self) -> int:
        """The number of processes of the trial."""
        return self.size

    def get_num_agents(self) -> int:
        """The number of nodes of the trial."""
        return self.cross_size

    def gather(self, stuff: Any) -> list[Any] | None:
        """The chief gets a list of everybody's `stuff` by rank, workers get None."""
        return [stuff]

    def gather_local(self, stuff: Any) -> list[Any] | None:
        """As `gather`, among the processes of this node."""
        return [stuff]

    def allgather(self, stuff: Any) -> list[Any]:
        """Everybody gets a list of everybody's `stuff` by rank."""
        return [stuff]

    def allgather_local(self, stuff: Any) -> list[Any]:
        """As `allgather`, among the processes of this node."""
        return [stuff]

    def broadcast(self, stuff: Any) -> Any:
        """Everybody gets the chief's `stuff`."""
        return stuff

    def broadcast_local(self, stuff: Any = None) -> Any:
        """Everybody on this node gets the local chief's `stuff`."""
        return stuff

    def close(self) -> None:
        """Leave the group of peers."""
