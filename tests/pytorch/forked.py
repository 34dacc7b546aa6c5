"""Ranks as forks of one process: python -m tests.pytorch.forked COUNT -m MODULE ARGS...

torch is imported once, not by a launcher and each rank, and each rank has the environment that
torchrun gives it. (That the ranks of real launchers find each other is for their own tests.)
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
from types import ModuleType

from torch.distributed import TCPStore

from detslurm import pytorch


def main(count: int, name: str, *args: str) -> int:
    """Run `MODULE.main()` on each rank; the first exit status that is not zero."""
    module = importlib.import_module(name)
    for exported in pytorch.__all__:
        getattr(pytorch, exported)
    if hasattr(module, "fully_shard"):  # which loads torch's compiler: each rank would
        importlib.import_module("torch._dynamo.config")
    with socket.create_server(("127.0.0.1", 0), backlog=128) as meeting:
        port = meeting.getsockname()[1]
        ranks = [_fork(module, args, _environment(rank, count, port)) for rank in range(count)]
        # Its threads must not be there yet when ranks are forked. What connects earlier waits.
        descriptor = os.dup(meeting.fileno())
        store = TCPStore(
            "127.0.0.1", port, None, True, wait_for_workers=False, master_listen_fd=descriptor
        )
        try:
            return _wait(ranks)
        finally:
            del store


def _environment(rank: int, count: int, port: int) -> dict[str, str]:
    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count)),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _fork(module: ModuleType, args: tuple[str, ...], environment: dict[str, str]) -> int:
    if pid := os.fork():
        return pid
    os.environ |= environment
    sys.argv = [module.__name__, *args]
    module.main()
    sys.exit()


def _wait(ranks: list[int]) -> int:
    """Wait for all; once one fails, the others would wait for it."""
    left = set(ranks)
    failed = 0
    while left:
        pid, status = os.wait()
        left.discard(pid)
        if status and not failed:
            failed = os.waitstatus_to_exitcode(status)
            for other in left:
                os.kill(other, signal.SIGKILL)
    return failed


if __name__ == "__main__":
    sys.exit(abs(main(int(sys.argv[1]), *sys.argv[3:])))
