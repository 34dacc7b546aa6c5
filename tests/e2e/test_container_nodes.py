"""Containers in searches, and what is left when any part of one is killed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from detslurm.store import trial_metrics
from tests.cluster import Cluster
from tests.cluster.processes import alive, command, descendants, executable
from tests.cluster.waiting import wait_for
from tests.containers import leftovers
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_main_job import make_room
from tests.e2e.test_search import project

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("containers")]

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


@pytest.mark.parametrize("runtime", ["charliecloud", "apptainer"])
@pytest.mark.nightly
def test_a_search_with_another_python(
    request: pytest.FixtureRequest, desk: Desk, slurm: Cluster, newer_image: Path, runtime: str
) -> None:
    """Eight trials with the msgspec of an image of Python 3.13. A preempted one resumes."""
    request.getfixturevalue(runtime)
    container = f"slurm.container={runtime}", f"environment.image={newer_image}"
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
    """Kill -9 of a part in each run, the agent last; one more run ends as it should."""
    for run, victim in enumerate(victims, 1):
        os.kill(layers(desk, number, run)[victim], signal.SIGKILL)
    layers(desk, number, len(victims) + 1)
    reason = desk.trial(number).runs[-2].reason or ""
    assert reason.startswith("a node agent ended without a report: ")
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
