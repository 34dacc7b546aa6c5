"""The environment of workers that use torch.distributed, under any launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping

from detslurm._base import contract
from detslurm._base.addresses import socket_interfaces
from detslurm.launch.nodes import Nodes, threads_each


def torch_environment(
    nodes: Nodes, workers: int, defaults: Mapping[str, str], ours: Mapping[str, str]
) -> dict[str, str]:
    """The environment of this node's `workers` workers: the user's own wins over `defaults`.

    Raises `OSError` where this node lacks the interface that was asked for.
    """
    common = {"OMP_NUM_THREADS": str(threads_each(workers)), **_interfaces(nodes)}
    return {**common, **defaults, **os.environ, contract.CHIEF_IP: nodes.chief, **ours}


def _interfaces(nodes: Nodes) -> dict[str, str]:
    """Variables that name the nodes' network. Raises `OSError` where this node lacks it."""
    names = os.environ.get(contract.INTERFACE)
    if not nodes.is_multi_node and not names:
        return {}
    try:
        return socket_interfaces(names, nodes.addrs[nodes.rank])
    except OSError:
        if nodes.is_multi_node:
            raise
        return {}  # nothing leaves this node
