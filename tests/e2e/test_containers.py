"""Entrypoints in containers, or in what those are made of, as an ordinary user's job."""

from __future__ import annotations

import re
import sys

import pytest

from tests.e2e.conftest import needs_mpi
from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room

pytestmark = pytest.mark.cluster

# Saves when it is preempted; the image's Python has nothing installed.
TRAIN = """\
    import os, sys, time
    import detslurm as det

    info = det.get_cluster_info()
    with det.core.init() as core:
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                print("in", sys.executable, "went on from", (path / "step").read_text())
            raise SystemExit(0)
        core.train.report_training_metrics(1, {"loss": 1.0})
        while not core.preempt.should_preempt():
            time.sleep(0.05)
        with core.checkpoint.store_path({"steps_completed": 7}) as (path, _):
            (path / "step").write_text("7")
"""

# Each rank says which user namespace it is in.
RANKS = """\
    import os
    from mpi4py import MPI
    import detslurm as det

    info, world = det.get_cluster_info(), MPI.COMM_WORLD
    with det.core.init(distributed=det.core.DistributedContext.from_mpi(world)) as core:
        spaces = core.distributed.allgather(os.readlink("/proc/self/ns/user"))
        print("rank", world.rank, "of", world.size, *spaces, flush=True)
        assert not core.preempt.should_preempt()
    if info.trial._trial_run_id == 1 and world.rank == 3:
        os._exit(9)
"""


def container(desk: Desk, words: str) -> str:
    """The option for a prefix, where this user can use it."""
    done = desk.user.run("sh", "-c", f"{words} true", check=False)
    if done.returncode:
        pytest.skip(f"no containers here: {done.stderr.strip()}")
    return f"slurm.container_prefix=[{', '.join(words.split())}]"


@pytest.mark.nightly
def test_preempted_in_a_container(desk: Desk) -> None:
    """In process, user and mount namespaces of its own, with /dev and /proc of its own."""
    bwrap = "bwrap --bind / / --dev /dev --proc /proc --unshare-user --unshare-pid"
    number = desk.submit(desk.project(TRAIN), "resources.resource_pool=low", container(desk, bwrap))
    desk.wait_for_steps(number, 1)
    make_room(desk)
    desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number) == ["preempted", "completed"]
    found = re.search(r"in (\S+) went on from 7", desk.log(number))
    assert found is not None and found[1] != sys.executable


@needs_mpi
@pytest.mark.nightly
def test_mpi_ranks_are_in_containers_too(desk: Desk) -> None:
    """Those that the runner starts, on both nodes; the exit status of one reaches the runner."""
    number = desk.submit(
        desk.project(RANKS),
        f"entrypoint={sys.executable} -m detslurm.launch.mpi train.py",
        "resources.slots_per_trial=4",
        "slurm.slots_per_node=2",
        "environment.environment_variables=['OMPI_MCA_btl=self,tcp']",
        container(desk, "unshare --map-current-user"),  # PMIx goes by the user id
    )
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert desk.outcomes(number) == ["restart", "completed"], desk.log(number)
    spaces = re.findall(r"rank \d of 4 ((?:user:\[\d+\] ?){4})", desk.log(number))
    assert len(spaces) == 8
    assert all(len(set(line.split())) == 4 for line in spaces), "ranks outside of containers"
