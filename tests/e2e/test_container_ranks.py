"""Every launcher in containers on two nodes: preempted in the middle, and resumed."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.containers import leftovers
from tests.e2e.conftest import needs_mpi
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_main_job import make_room
from tests.launchers.workers import needs_deepspeed

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.xdist_group("containers"),
]

# The image has Python alone, of the minor version that this environment's packages are for.
PACKAGES = Path("/opt/packages")
SITE_PACKAGES = PACKAGES / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)

# The first run waits at step 3 for its preemption. In each step the ranks add up their parts.
LOOP = f"""\
    with det.core.init(distributed=peers) as core:
        where = peers.allgather((info.container_rank, os.path.exists("{PACKAGES}")))
        print("ranks", *where, flush=True)
        step = 0
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                step = int((path / "step").read_text())
        while step < 6 and not core.preempt.should_preempt():
            step += 1
            loss = total(step * (peers.rank + 1))
            if peers.rank == 0:
                core.train.report_training_metrics(step, {{"loss": loss}})
            while step == 3 and not info.latest_checkpoint and not core.preempt.should_preempt():
                time.sleep(0.05)
        if peers.rank == 0:
            with core.checkpoint.store_path({{"steps_completed": step}}) as (path, _):
                (path / "step").write_text(str(step))
"""
MPI = """\
    import os, time
    from mpi4py import MPI
    import detslurm as det

    info, world = det.get_cluster_info(), MPI.COMM_WORLD
    peers, total = det.core.DistributedContext.from_mpi(world), world.allreduce
"""
TORCH = """\
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
# A weight whose gradient is the number, averaged over the ranks.
DEEPSPEED = """\
    import os, time
    import deepspeed
    import torch
    import detslurm as det

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # the image has no compiler
    deepspeed.init_distributed("gloo")
    info, peers = det.get_cluster_info(), det.core.DistributedContext.from_deepspeed()
    net = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(net.weight)
    config = {"train_batch_size": peers.size, "gradient_clipping": 0.0,
              "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True}
    sgd = torch.optim.SGD(net.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=net, optimizer=sgd, config=config)

    def total(number):
        before = net.weight.item()
        engine.backward(engine(torch.tensor([[float(number)]])).sum())
        engine.step()
        return (before - net.weight.item()) * peers.size

"""
HOROVOD = """\
    import os, time
    import horovod.torch as hvd
    import torch
    import detslurm as det

    hvd.init()
    info, peers = det.get_cluster_info(), det.core.DistributedContext.from_horovod(hvd)

    def total(number):
        return hvd.allreduce(torch.tensor(float(number)), op=hvd.Sum).item()

"""


def on_two_nodes(
    desk: Desk, container: Sequence[str], script: str, launcher: str, *paths: str
) -> int:
    """A training in a container on each node, with this environment's packages, and `paths`."""
    # A directory, and a file that the image has no place for.
    library = next(Path("/usr/lib").glob("*/libstdc++.so.6"))
    places = dict(zip(paths, paths, strict=True))
    binds = {**places, sys.prefix: str(PACKAGES), str(library): str(library)}
    lines = "\n".join(f"  - {{host_path: {s}, container_path: {t}}}" for s, t in binds.items())
    variables = f"PYTHONPATH={SITE_PACKAGES}", f"MPI4PY_LIBMPI={PACKAGES}/lib/libmpi.so.40"
    return desk.submit(
        desk.project(script + LOOP, f"bind_mounts:\n{lines}\n", name=launcher),
        f"entrypoint=python3 -m detslurm.launch.{launcher} train.py",
        f"environment.environment_variables={[*variables]}",
        "resources.resource_pool=low",
        "resources.slots_per_trial=2",
        "slurm.slots_per_node=1",
        *container,
    )


def assert_preempted_and_resumed(desk: Desk, cluster: Cluster, *numbers: int) -> None:
    """Every rank was in a container, in both runs, and the losses are those of one in one go."""
    for number in numbers:
        desk.wait_for_steps(number, 3)
    make_room(desk)
    for number in numbers:
        desk.wait_for_state(number, "COMPLETED", "ERROR")
        assert desk.outcomes(number) == ["preempted", "completed"]
        losses = [row.metrics["loss"] for row in desk.metrics(number)]
        assert losses == [3.0 * step for step in range(1, 7)]
        assert desk.log(number).count("ranks (0, True) (1, True)\n") == 4
    wait_for(lambda: not leftovers(cluster, desk.user), PATIENCE, "nothing left of a container")


def has_mpi() -> bool:
    """Whether Slurm starts ranks of PyPI's MPI, whose libraries lie in one folder."""
    return not needs_mpi.args[0] and Path(sys.prefix, "lib", "libmpi.so.40").exists()


@pytest.fixture
def in_charliecloud(charliecloud: None, image: Path) -> list[str]:
    """The options of a container, which starts in no time."""
    return ["slurm.container=charliecloud", f"environment.image={image}"]


@pytest.fixture
def in_podman(podman: object, podman_image: str) -> list[str]:
    """The options of a container in which nothing is shared but what is mounted."""
    return ["slurm.container=podman", f"environment.image={podman_image}"]


@pytest.mark.nightly
def test_torchrun_and_mpi(desk: Desk, slurm: Cluster, in_charliecloud: list[str]) -> None:
    """By torchrun inside, and by srun outside."""
    numbers = [on_two_nodes(desk, in_charliecloud, TORCH, "torch_distributed")]
    if has_mpi():
        numbers.append(on_two_nodes(desk, in_charliecloud, MPI, "mpi"))
    assert_preempted_and_resumed(desk, slurm, *numbers)


@pytest.mark.nightly
def test_torchrun_and_mpi_in_podman(desk: Desk, slurm: Cluster, in_podman: list[str]) -> None:
    """The same, where the node's variables and its file system stay outside."""
    numbers = [on_two_nodes(desk, in_podman, TORCH, "torch_distributed")]
    if has_mpi():
        numbers.append(on_two_nodes(desk, in_podman, MPI, "mpi"))
    assert_preempted_and_resumed(desk, slurm, *numbers)


@pytest.fixture
def in_apptainer(apptainer: None, newer_image: Path) -> list[str]:
    """The options of a container, where there is Apptainer."""
    return ["slurm.container=apptainer", f"environment.image={newer_image}"]


def test_torchrun_in_apptainer(desk: Desk, slurm: Cluster, in_apptainer: list[str]) -> None:
    """With Debian's Python and torch, which are the node's there."""
    programs = "/usr", "/etc/alternatives"
    number = on_two_nodes(desk, in_apptainer, TORCH, "torch_distributed", *programs)
    assert_preempted_and_resumed(desk, slurm, number)


@needs_deepspeed
@pytest.mark.nightly
def test_deepspeed(desk: Desk, slurm: Cluster, in_charliecloud: list[str]) -> None:
    """An engine with ZeRO-1 by DeepSpeed's own launcher inside."""
    number = on_two_nodes(desk, in_charliecloud, DEEPSPEED, "deepspeed")
    assert_preempted_and_resumed(desk, slurm, number)


@needs_mpi
def test_horovod(desk: Desk, slurm: Cluster, in_charliecloud: list[str], horovod: None) -> None:
    """Over MPI, by srun outside."""
    number = on_two_nodes(desk, in_charliecloud, HOROVOD, "horovod")
    assert_preempted_and_resumed(desk, slurm, number)
