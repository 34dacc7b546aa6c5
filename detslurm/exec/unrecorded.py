"""How the first process of a step lets the others on its node know that it records no run."""

from __future__ import annotations

import os
import socket

from detslurm._base.identity import is_ours, name_on_node
from detslurm.exec.unmanaged_claims import JobStep


def announce(step: JobStep) -> None:
    """Let `is_announced` be true on this node as long as this process lives.

    A socket without a name on disk: a full disk may be the very reason.
    """
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(_name(step))
        server.listen(socket.SOMAXCONN)  # each rank of the node connects once; none is accepted
    except OSError:  # announced before
        server.close()
    else:
        server.detach()  # open until this process ends


def is_announced(step: JobStep) -> bool:
    """Whether the first process of this step is on this node and records nothing."""
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(_name(step))
        except OSError:
            return False
        return is_ours(client)


def _name(step: JobStep) -> str:
    ref, start = step.allocation.ref, step.allocation.restart_count
    return name_on_node(os.environ, f"unrecorded {ref} {step.name} {step.claim} {start}")
