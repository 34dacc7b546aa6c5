"""MPI ranks on several nodes, started by srun."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cluster.waiting import wait_for
from tests.e2e.conftest import needs_mpi
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.processes import find_process, find_program, kill_runner, processes_of
from tests.e2e.test_main_job import make_room
from tests.e2e.test_unmanaged_jobs import batch, named

pytestmark = [pytest.mark.cluster, needs_mpi]

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
    time.sleep(600)
"""


def pids(desk: Desk, number: int, run: int) -> list[int]:
    """The process ids of the two ranks of a run, once both know each other."""

    def said() -> list[str]:
        path = desk.trial_dir(number).log_path(run)
        lines = path.read_text().splitlines() if path.exists() else []
        found = [line for line in lines if "|| pid " in line]
        return found if len(found) == 2 else []

    lines = wait_for(said, PATIENCE, f"two ranks of run {run}")
    assert all("of 2 nodes [0, 1] 2" in line for line in lines)
    for rank in range(2):
        assert any(f"[rank={rank}] || " in line for line in lines)
    return [int(line.split("|| pid ")[1].split()[0]) for line in lines]


@pytest.mark.strange_site
def test_whatever_is_killed_the_run_starts_again_and_leaves_nothing(desk: Desk) -> None:
    """Each rank knows its own node. kill -9 of a rank, of the srun that started the ranks, or of a
    node's agent: the next run begins and nothing of the old one remains. After
    kill -9 of the runner no process of the job remains on any node."""
    shape = ("resources.slots_per_trial=2", "slurm.slots_per_node=1", *LAUNCH)
    number = desk.submit(desk.project(SCRIPT), *shape)
    path = desk.experiment(number).path
    runner = find_process(f"detslurm.exec.runner {path} ")
    agent = rf"\S*python\S* -PS \S+ detslurm.exec.agent {path} "
    for run, victim in enumerate(("rank", r"srun .* detslurm.launch.mpi_rank ", agent), 1):
        ranks = pids(desk, number, run)
        old = processes_of(desk, number)
        os.kill(ranks[0] if victim == "rank" else find_program(desk, victim), signal.SIGKILL)
        wait_for(lambda: len(desk.outcomes(number)) == run + 1, PATIENCE, "the next run")  # noqa: B023
        wait_for(lambda: not old - {runner} & processes_of(desk, number), PATIENCE, "the end")  # noqa: B023
    pids(desk, number, 4)
    assert desk.outcomes(number) == ["restart", "restart", "restart", None]
    assert len({run.job.ref for run in desk.trial(number).runs}) == 1
    kill_runner(desk, number)


COUNT = """\
    import os
    from mpi4py import MPI
    import detslurm as det

    world, info = MPI.COMM_WORLD, det.get_cluster_info()
    assert info.container_rank == int(os.environ["SLURM_NODEID"])
    nodes = world.allgather(info.container_rank)
    flags = world.allgather(os.environ["DETSLURM_PREEMPT_FLAG"])
    apart = len(set(flags)) == len(set(nodes)) == len(set(zip(nodes, flags)))
    print("nodes", *nodes, "flags", len(set(flags)) if apart else flags, flush=True)
"""


def test_as_many_ranks_as_the_arguments_say(desk: Desk) -> None:
    """Fewer than slots, or more: the run ends with the last of them, and so do all nodes. Each rank
    knows its own node, and has its node's preemption flag."""
    project = desk.project(COUNT)
    wanted = {
        "-n 2": "0 1 flags 2",
        "-n 6 --ntasks-per-node=3 --overcommit": "0 0 0 1 1 1 flags 2",
        "-n 1": None,
    }
    started = {
        desk.submit(
            project,
            *SHAPE[:2],
            f"entrypoint=python3 -m detslurm.launch.mpi {arguments} -- train.py",
            "max_restarts=0",
        ): nodes
        for arguments, nodes in wanted.items()
    }
    for number, nodes in started.items():
        state = desk.wait_for_state(number, "COMPLETED", "ERROR")
        log = desk.log(number)
        assert state == ("COMPLETED" if nodes else "ERROR"), log
        assert (f"nodes {nodes}" if nodes else "1 ranks on 2 nodes") in log


def test_a_training_on_some_of_a_job_s_nodes(desk: Desk) -> None:
    """A batch script of one's own may have several: the ranks of each are on its own step's nodes,
    also where the job was asked for with GPUs of all its nodes together."""
    desk.write("train.py", textwrap.dedent(COUNT))
    # Its first nodes: with others Slurm 22.05 hangs in MPI_Init now and then, whoever calls srun.
    launch = "--nodes=2 --ntasks-per-node=1 python3 -m detslurm.launch.mpi train.py"
    batch(desk, f"srun {launch}\n", "--nodes=3", "--job-name=plain")
    batch(desk, f"srun --gpus=2 {launch}\n", "--nodes=3", "--gpus=3", "--job-name=gpus")
    for name in ("plain", "gpus"):
        number = named(desk, name, steps=0)
        assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED"
    assert desk.user.cwd is not None
    assert (desk.user.cwd / "job.out").read_text().count("nodes 0 1 flags 2\n") == 4


FENCES = """\
    import ctypes, os, pathlib, time

    pmix, rank = ctypes.CDLL({pmix!r}), int(os.environ["PMIX_RANK"])
    assert pmix.PMIx_Init(ctypes.create_string_buffer(1024), None, 0) == 0
    for fence in range(4):
        if rank < 2:
            time.sleep(0.3)  # the first node is late
        pathlib.Path({seen!r}, f"{{fence}}.{{rank}}").touch()
        assert pmix.PMIx_Fence(None, 0, None, 0) == 0
        there = len(list(pathlib.Path({seen!r}).glob(f"{{fence}}.*")))
        print("at fence", fence, "there were", there, flush=True)
    pmix.PMIx_Finalize(None, 0)
"""


def test_a_fence_of_pmix_waits_for_every_node(desk: Desk) -> None:
    """No rank leaves MPI_Init before all are there: Open MPI crashes where one is late."""
    library = next(Path(sys.prefix, "lib").rglob("libpmix.so.2"), None) or "libpmix.so.2"
    assert desk.user.cwd is not None
    seen = desk.user.cwd / "seen"
    seen.mkdir()
    seen.chmod(0o777)
    script = FENCES.format(pmix=str(library), seen=str(seen))
    number = desk.submit(desk.project(script), *SHAPE, "max_restarts=0")
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    log = desk.log(number)
    for fence in range(4):
        assert log.count(f"at fence {fence} there were 4") == 4, log


# Each rank has a number of its own, moved by all the others' at every step. The first run waits at
# step 3 for the preemption.
TRAIN = """\
    import time
    from mpi4py import MPI
    import detslurm as det

    world = MPI.COMM_WORLD
    with det.core.init(distributed=det.core.DistributedContext.from_mpi()) as core:
        info = det.get_cluster_info()  # only now: in a batch script of its own the job is joined
        step, mine = 0, 1.0 + world.rank
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                step, mine = eval((path / f"rank{world.rank}").read_text())
        while step < 60:
            total = sum(world.allgather(mine))
            step, mine = step + 1, mine * 0.9 + total / 70
            if world.rank == 0:
                core.train.report_training_metrics(step, {"loss": total})
            stop = core.preempt.should_preempt()
            while step == 3 and not stop:
                time.sleep(0.05)
                stop = core.preempt.should_preempt()
            if stop:
                print("saves at step", step, flush=True)
                saving = core.checkpoint.store_path({"steps_completed": step}, shard=True)
                with saving as (path, _):
                    (path / f"rank{world.rank}").write_text(repr((step, mine)))
                break
"""


def losses(size: int) -> list[tuple[int, float]]:
    """What TRAIN reports when nothing disturbs it."""
    numbers, found = [1.0 + rank for rank in range(size)], []
    for step in range(1, 61):
        found.append((step, total := sum(numbers)))
        numbers = [mine * 0.9 + total / 70 for mine in numbers]
    return found


@pytest.mark.slow
def test_preempted_and_bit_identical(desk: Desk) -> None:
    """A job of higher priority comes: every rank of `srun` on two nodes, of mpirun on one, and of
    srun and of the launcher in batch scripts of the user's own learns of it and saves; requeued,
    all go on with the bits of an undisturbed training."""
    low = ("resources.resource_pool=low", "max_restarts=0")
    four = desk.submit(desk.project(TRAIN, name="four"), *SHAPE, *low)
    two = desk.submit(desk.project(TRAIN, name="two"), *LAUNCH, "resources.slots_per_trial=2", *low)
    script = "srun --mpi=pmix --ntasks-per-node=2 python3 four/train.py\n"
    batch(desk, script, "--partition=low", "--nodes=2", "--ntasks-per-node=2", "--job-name=own")
    own = named(desk, "own", steps=3)
    launch = "python3 -m detslurm.launch.mpi --ntasks-per-node=1 -- four/train.py"
    script = f"srun --ntasks-per-node=1 {launch}\n"
    batch(desk, script, "--partition=low", "--nodes=2", "--job-name=launched")
    launched = named(desk, "launched", steps=3)
    for number in (four, two):
        desk.wait_for_steps(number, 3)
    make_room(desk)
    for number, size in ((four, 4), (two, 2), (own, 4), (launched, 2)):
        desk.wait_for_state(number, "COMPLETED", "ERROR")
        log = desk.log(number)
        assert desk.outcomes(number) == ["preempted", "completed"], log
        if number in (four, two):
            assert all(f"[rank={rank}] || saves at step " in log for rank in range(size))
            assert "lacks support for cpu binding" not in log
        trial = desk.trial(number)
        assert [run.exit_code for run in trial.runs] == [0, 0]
        assert trial.runs[1].resumed_steps == 3
        assert trial.restarts == 0
        rows = [(row.steps, row.metrics["loss"]) for row in desk.metrics(number)]
        assert rows == losses(size)
