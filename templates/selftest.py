"""The code of the trials of `detslurm selftest`.

`train.py` reports how many GPUs Slurm names, and ends. `train.py first COMMAND` runs COMMAND in a
shell, waits for a preemption, saves and leaves; the trial's next run reports. `train.py nodes` and
`train.py mpi` count the ranks that reach each other over the network and over MPI.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import detslurm as det

PATIENCE = 240.0  # seconds in which a preemption has to come


def ranks(info: det.ClusterInfo, how: str) -> det.core.DistributedContext:
    """The ranks: one on each node, or those of MPI."""
    rank, size = info.container_rank, len(info.container_addrs)
    if how == "mpi":
        from mpi4py import MPI

        rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    return det.core.DistributedContext(
        rank=rank,
        size=size,
        local_rank=0,
        local_size=1,
        cross_rank=rank,
        cross_size=size,
        chief_ip=info.container_addrs[0],
        force_tcp=how == "nodes",
    )


def gpus() -> int:
    """How many GPUs Slurm names to the job."""
    names = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    named = next(filter(None, map(os.environ.get, names)), "NoDevFiles")
    return 0 if named == "NoDevFiles" else len(named.split(","))


def leave(core: det.core.Context, command: str) -> None:
    """Run the command, and save as soon as the job has to go."""
    # The command may signal all of this step, and is a part of it.
    done = subprocess.run(["sh", "-c", f"trap '' TERM; {command}"], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)  # its message is the last line of the log
    until = time.monotonic() + PATIENCE
    while not core.preempt.should_preempt():
        if time.monotonic() > until:
            raise SystemExit(f"no preemption within {PATIENCE:.0f} seconds")
        time.sleep(0.2)
    with core.checkpoint.store_path({"steps_completed": 1}) as (path, _):
        (path / "saved").write_text("yes")


def main(how: str = "", command: str = "") -> None:
    """Follow the words of the command line."""
    info = det.get_cluster_info()
    assert info is not None
    distributed = ranks(info, how) if how in ("nodes", "mpi") else None
    with det.core.init(distributed=distributed) as core:
        if how == "first" and info.latest_checkpoint is None:
            leave(core, command)
            return
        figure = sum(distributed.allgather(1)) if distributed else gpus()
        if distributed is None or distributed.rank == 0:
            core.train.report_validation_metrics(2, {"figure": figure})


if __name__ == "__main__":
    main(*sys.argv[1:])
