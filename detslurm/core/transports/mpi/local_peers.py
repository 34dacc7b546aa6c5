"""Finds MPI processes of this node that have died; MPI itself need not report it.

Most launchers end the whole job when a rank is killed. Where it is configured not to, the others
would wait without end: the ranks on the dead rank's node see it and report it to the rest.
"""

from __future__ import annotations

from typing import Any

from detslurm._base.process import Identity, node


class LocalPeers:
    """The other processes of a communicator that run on this node."""

    def __init__(self, comm: Any) -> None:
        # A pid alone is reused: the identity has boot id, pid namespace and start time, too. It is
        # taken while all are alive, and processes of other nodes (or containers) are not judged
        # from here.
        rows = [Identity(*row) for row in comm.allgather(tuple(Identity.own()))]
        own = comm.Get_rank()
        here = node()
        self._seen = {i: row for i, row in enumerate(rows) if row.node == here and i != own}

    def dead(self) -> list[int]:
        """The indexes of those that have ended, in order or not."""
        return [index for index, peer in self._seen.items() if peer.is_dead()]
