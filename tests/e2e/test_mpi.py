"""MPI ranks on several nodes, started by srun."""

from __future__ import annotations

import importlib.util
import os
import signal

import pytest

from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.e2e.desk import Desk
from tests.e2e.test_failures import is_alive
from tests.e2e.test_main_job import make_room

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        importlib.util.find_spec("mpi4py") is None, reason="no MPI: mpi4py is not installed"
    ),
]

LAUNCH = ("entrypoint=python3 -m detslurm.launch.mpi train.py",)
SHAPE = ("resources.slots_per_trial=4", "slurm.slots_per_node=2", *LAUNCH)

SCRIPT = """\
    import os, time
    from mpi4py import MPI
    import detslurm as det

    world = MPI.COMM_WORLD
    info = det.get_cluster_info()
    nodes = world.allgather(info.container_rank)
    flags = world.allgather(os.environ["DETSLURM_PREEMPT_FLAG"])
    print("pid", os.getpid(), "of", world.size, "nodes", nodes, len(set(flags)), flush=True)
    if info.trial._trial_run_id == 1:
        time.sleep(60)
    world.barrier()
"""


def test_ranks_on_two_nodes(desk: Desk, slurm: Cluster) -> None:
    """Each rank knows its own node; kill -9 of one ends all, and the next run completes."""
    number = desk.submit(desk.project(SCRIPT), *SHAPE)

    def said() -> list[str]:
        path = desk.trial_dir(number).log_path(1)
        lines = path.read_text().splitlines() if path.exists() else []
        found = [line for line in lines if "|| pid " in line]
        return found if len(found) == 4 else []

    lines = wait_for(said, 60, "four ranks")
    assert all("of 4 nodes [0, 0, 1, 1] 2" in line for line in lines)
    for rank in range(4):
        assert any(f"[rank={rank}] || " in line for line in lines)
    pids = [int(line.split("|| pid ")[1].split()[0]) for line in lines]
    os.kill(pids[0], signal.SIGKILL)
    desk.wait_for_state(number, "COMPLETED", timeout=60)
    assert desk.outcomes(number) == ["restart", "completed"]
    assert not any(map(is_alive, pids))


PREEMPTED = """\
    import time
    from mpi4py import MPI
    import detslurm as det
    from detslurm.core._preempt import attach_flag, survive_preemption_signal

    survive_preemption_signal(flag := attach_flag())
    first = det.get_cluster_info().trial._trial_run_id == 1
    print("up", flush=True)
    while first and not MPI.COMM_WORLD.allreduce(flag.preempt):
        time.sleep(0.05)
    if first:
        flag.acknowledge()
"""


def test_a_preemption_leaves_mpirun_alone(desk: Desk) -> None:
    """mpirun outlives the SIGTERM that every process of a step gets, and so do the ranks."""
    shape = ("resources.resource_pool=low", "resources.slots_per_trial=2", *LAUNCH)
    number = desk.submit(desk.project(PREEMPTED), *shape)
    desk.wait_for_log(number, "[rank=1] || up")
    make_room(desk)
    desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number) == ["preempted", "completed"], desk.log(number)
    assert [run.exit_code for run in desk.trial(number).runs] == [0, 0]
