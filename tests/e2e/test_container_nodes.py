"""Containers on several nodes and in searches, and what is left when any part of one is killed."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

from detslurm.store import trial_metrics
from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.containers import leftovers
from tests.e2e.conftest import needs_mpi
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_main_job import make_room
from tests.e2e.test_search import project

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("containers")]

# The image has Python alone, of the minor version that this environment's packages are for.
PACKAGES = Path("/opt/packages")
SITE_PACKAGES = PACKAGES / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)

# The first run waits at step 3 for its preemption. In each step the ranks add up their parts.
LOOP = """\
    with det.core.init(distributed=peers) as core:
        where = peers.allgather((info.container_rank, "CH_RUNNING" in os.environ))
        print("ranks", *where, flush=True)
        step = 0
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                step = int((path / "step").read_text())
        while step < 6 and not core.preempt.should_preempt():
            step += 1
            loss = total(step * (peers.rank + 1))
            if peers.rank == 0:
                core.train.report_training_metrics(step, {"loss": loss})
            while step == 3 and not info.latest_checkpoint and not core.preempt.should_preempt():
                time.sleep(0.05)
        if peers.rank == 0:
            with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                (path / "step").write_text(str(step))
"""
MPI = """\
    import os, time
    from mpi4py import MPI
    import detslurm as det

    info, world = det.get_cluster_info(), MPI.COMM_WORLD
    peers, total = det.core.DistributedContext.from_mpi(world), world.allreduce
"""
GLOO = """\
    import os, time
    import torch
    import torch.distributed as dist
    import detslurm as det

    dist.init_process_group("gloo")
    info, peers = det.get_cluster_info(), det.core.DistributedContext.from_torch_distributed()

    def total(number):
        numbers = torch.tensor(float(number))
        dist.all_reduce(numbers)
        return numbers.item()

"""


SEARCH = """\
    searcher: {name: random, metric: loss, max_length: 2, max_trials: 8, max_concurrent_trials: 4}
    hyperparameters: {x: {type: double, minval: 0, maxval: 1}}
    reproducibility: {experiment_seed: 7}
    resources: {resource_pool: low}
    """
# The third trial waits to be preempted.
TRIAL = """\
    import os, sys, time
    import msgspec
    import detslurm as det

    info = det.get_cluster_info()
    print("with", *sys.version_info[:2], msgspec.__file__, flush=True)
    with det.core.init() as core:
        waits = info.trial.trial_id == 3 and info.latest_checkpoint is None
        while waits and not core.preempt.should_preempt():
            print("waiting", flush=True)
            time.sleep(0.05)
        if waits:
            with core.checkpoint.store_path({"steps_completed": 0}) as (path, _):
                (path / "step").touch()
            raise SystemExit(0)
        x = info.trial.hparams["x"]
        core.train.report_validation_metrics(2, {"loss": x * x})
"""


def nothing_is_left(desk: Desk, cluster: Cluster) -> None:
    wait_for(lambda: not leftovers(cluster, desk.user), PATIENCE, "nothing left of a container")


def on_two_nodes(desk: Desk, image: Path, script: str, launcher: str) -> int:
    """A training in a container on each node, with this environment's packages."""
    # A directory, and a file that the image has no place for.
    library = next(Path("/usr/lib").glob("*/libstdc++.so.6"))
    binds = {sys.prefix: PACKAGES, library: library}
    lines = "\n".join(f"  - {{host_path: {s}, container_path: {t}}}" for s, t in binds.items())
    variables = f"PYTHONPATH={SITE_PACKAGES}", f"MPI4PY_LIBMPI={PACKAGES}/lib/libmpi.so.40"
    return desk.submit(
        desk.project(script, f"bind_mounts:\n{lines}\n", name=launcher),
        f"entrypoint=python3 -m detslurm.launch.{launcher} train.py",
        f"environment.image={image}",
        f"environment.environment_variables={[*variables]}",
        "resources.resource_pool=low",
        "resources.slots_per_trial=2",
        "slurm.slots_per_node=1",
        "slurm.container=charliecloud",
    )


@pytest.mark.slow
@pytest.mark.usefixtures("charliecloud")
def test_ranks_on_two_nodes(desk: Desk, slurm: Cluster, image: Path) -> None:
    """In containers, by torchrun inside and by srun outside; preempted in the middle, and resumed.
    The second needs PyPI's MPI, whose libraries lie in one folder."""
    numbers = [on_two_nodes(desk, image, GLOO + LOOP, "torch_distributed")]
    if not needs_mpi.args[0] and Path(sys.prefix, "lib", "libmpi.so.40").exists():
        numbers.append(on_two_nodes(desk, image, MPI + LOOP, "mpi"))
    for number in numbers:
        desk.wait_for_steps(number, 3)
    make_room(desk)
    for number in numbers:
        desk.wait_for_state(number, "COMPLETED", "ERROR")
        assert desk.outcomes(number) == ["preempted", "completed"]
        losses = [row.metrics["loss"] for row in desk.metrics(number)]
        assert losses == [3.0 * step for step in range(1, 7)]
        assert desk.log(number).count("ranks (0, True) (1, True)\n") == 4
    nothing_is_left(desk, slurm)


@pytest.mark.usefixtures("charliecloud")
def test_a_search_with_another_python(desk: Desk, slurm: Cluster, newer_image: Path) -> None:
    """Eight trials with the msgspec of an image of Python 3.13. A preempted one resumes."""
    container = "slurm.container=charliecloud", f"environment.image={newer_image}"
    number = desk.submit(project(desk, TRIAL, SEARCH), *container)
    wait_for(lambda: "waiting" in desk.log(number, 2), PATIENCE, "the third trial")
    make_room(desk)
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    trials = desk.view(number).trials
    assert [trial.state for trial in trials] == ["COMPLETED"] * 8
    assert desk.outcomes(number, 2) == ["preempted", "completed"]
    for index, trial in enumerate(trials):
        (row,) = trial_metrics(desk.trial_dir(number, index))
        assert trial.hparams is not None and row.metrics["loss"] == trial.hparams["x"] ** 2
        assert "with 3 13 /usr/lib/python3/dist-packages/msgspec" in desk.log(number, index)
    nothing_is_left(desk, slurm)
