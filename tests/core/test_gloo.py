"""Ranks that end while threads of torch's gloo still have tensors of theirs."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, sys, torch
from detslurm.core import DistributedContext

def end(rank):
    DistributedContext(
        rank=rank, size=2, local_rank=rank, local_size=2, cross_rank=0, cross_size=1
    )
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    globals()["held"] = torch.distributed.group.WORLD  # as a model in DDP holds it
    made = [torch.ones(20_000_000) for _ in range(4)]
    for one in made:
        torch.distributed.all_reduce(one, async_op=True)
    del made, one
    sys.exit()

for number in range(3):
    for rank in range(2):
        if not os.fork():
            end(rank)
    print(*[os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)])
"""


def test_ranks_do_not_abort_at_their_end() -> None:
    """Without the wait half of them do."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.stdout.split() == ["0"] * 6, done.stderr
