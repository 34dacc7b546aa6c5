"""Containers on several nodes and in searches, and what is left when any part of one is killed."""

from __future__ import annotations

import os
import re
import signal
import sys
import sysconfig
from pathlib import Path

import pytest

from detslurm.store import trial_metrics
from tests.cluster import Cluster
from tests.cluster.processes import alive, command, descendants, executable
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


# Waits for its end by force, run by run; or for a file.
WAITS = """\
    import os, time
    from pathlib import Path
    import detslurm as det

    info = det.get_cluster_info()
    run, folder = info.trial._trial_run_id, Path(os.environ["DETSLURM_EXPERIMENT_DIR"])
    with det.core.init() as core:
        print("pid", os.getpid(), "of run", run, flush=True)
        while not (folder / f"go-{run}").exists():
            time.sleep(0.05)
        core.train.report_training_metrics(1, {"loss": 0.5})
        print("has ended", flush=True)
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


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def layers(desk: Desk, number: int, run: int) -> dict[str, int]:
    """The processes between the agent and the code of a run, once it waits."""
    lines = wait_for(
        lambda: re.findall(rf"pid (\d+) of run {run}\n", desk.log(number)), PATIENCE, f"run {run}"
    )
    code = int(lines[-1])
    found, pid = {"code": code, "shell": parent(code)}, parent(code)
    while "agent" not in found:
        pid = parent(pid)
        is_agent = "detslurm.exec.agent" in command(pid)
        found["agent" if is_agent else executable(pid)] = pid
    below = [pid for pid in sorted(descendants([found["agent"]])) if executable(pid) == "podman"]
    return found | dict(zip(("outer", "inner"), below, strict=False))


def let_go(desk: Desk, number: int, run: int) -> None:
    (desk.experiment(number).path / f"go-{run}").touch()


def completes(desk: Desk, number: int, runs: list[str]) -> None:
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert desk.outcomes(number) == [*runs, "completed"], desk.log(number)
    assert [row.metrics["loss"] for row in desk.metrics(number)] == [0.5]


def kill_in_turn(desk: Desk, number: int, *victims: str) -> None:
    """Kill -9 of a part in each run; the last run ends as it should."""
    for run, victim in enumerate(victims, 1):
        os.kill(layers(desk, number, run)[victim], signal.SIGKILL)
    layers(desk, number, len(victims) + 1)
    let_go(desk, number, len(victims) + 1)


@pytest.mark.nightly
@pytest.mark.usefixtures("charliecloud")
def test_whatever_of_charliecloud_is_killed(desk: Desk, slurm: Cluster, image: Path) -> None:
    """kill -9 of the code, of its container's first process, or of the agent: the run starts again
    and nothing is left behind."""
    container = "slurm.container=charliecloud", f"environment.image={image}"
    number = desk.submit(desk.project(WAITS), *container)
    kill_in_turn(desk, number, "code", "shell", "agent")
    completes(desk, number, ["restart"] * 3)
    nothing_is_left(desk, slurm)


@pytest.mark.nightly
@pytest.mark.usefixtures("podman")
def test_whatever_of_podman_is_killed(desk: Desk, slurm: Cluster, podman_image: str) -> None:
    """The same. The code outlives kill -9 of Podman. Without conmon it can't print, and fails; that
    is noticed though Podman waits without end."""
    container = "slurm.container=podman", f"environment.image={podman_image}"
    project = desk.project(WAITS)
    number = desk.submit(project, *container)
    others = {name: desk.submit(project, *container) for name in ("outer", "inner", "conmon")}
    for name, other in others.items():
        victim = layers(desk, other, 1)[name]
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: not alive(victim), PATIENCE, f"the end of {name}")  # noqa: B023
        let_go(desk, other, 1)
    kill_in_turn(desk, number, "code", "shell", "agent")
    completes(desk, number, ["restart"] * 3)
    layers(desk, others["conmon"], 2)
    let_go(desk, others["conmon"], 2)
    for name, other in others.items():
        completes(desk, other, ["restart"] if name == "conmon" else [])
    nothing_is_left(desk, slurm)
