"""A node that fails at once is idle first and gets the next job: the experiment survives it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, ClusterSpec, guarded, missing_programs
from tests.cluster.waiting import wait_for
from tests.conftest import Login
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.processes import find_processes

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def broken() -> Iterator[Path]:
    """A file with the name of the node where tasks can't begin; each user can read it."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder / "broken"
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def site(broken: Path) -> Iterator[Cluster]:
    """Three nodes for one job each; the task prolog fails on the node that the file names."""
    if missing := missing_programs():
        pytest.skip(f"no Slurm cluster: not installed: {', '.join(missing)}")
    prolog = broken.with_name("prolog.sh")
    prolog.write_text(f'#!/bin/sh\n[ "$(cat {broken} 2>/dev/null)" != "$SLURMD_NODENAME" ]\n')
    prolog.chmod(0o755)
    extra = (f"TaskProlog={prolog}",)
    spec = ClusterSpec(name="badnode", nodes=3, cpus=1, accounting=False, extra=extra)
    with guarded(Cluster(spec)) as cluster:
        yield cluster


@pytest.fixture
def desk(site: Cluster, login: Login, broken: Path) -> Desk:
    """An ordinary user there, with sound nodes at first."""
    broken.write_text("none")
    return Desk(login(site, "alice"))


# Trains until the file `go` or `go-INDEX` appears in the experiment's directory.
TRAINS = """\
    import os, pathlib, sys, time
    import detslurm as det

    if os.environ["SLURMD_NODENAME"] == os.environ.get("BAD_NODE"):
        sys.exit("the device does not answer")
    info = det.get_cluster_info()
    folder = pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"])
    mine = folder / f"go-{info.trial.hparams['x']}"
    with det.core.init() as core:
        core.train.report_training_metrics(1, {"loss": 1.0})
        while not ((folder / "go").exists() or mine.exists()):
            time.sleep(0.05)
"""


def grid(count: int) -> tuple[str, ...]:
    axis = f"{{type: int, minval: 0, maxval: {count - 1}, count: {count}}}"
    return "searcher.name=grid", f"hyperparameters.x={axis}"


def waits(desk: Desk, number: int) -> int:
    """The exit status of `experiment wait`."""
    return desk.run("experiment", "wait", str(number), check=False).returncode


def running_alone(site: Cluster, count: int) -> bool:
    """Whether so many jobs run, and none waits or ends."""
    return site.command("squeue", "-h", "-o", "%T").split() == ["RUNNING"] * count


def waiting_without(site: Cluster, setting: str) -> list[str]:
    """The jobs that wait for a node and lack a setting."""
    jobs = site.command("scontrol", "show", "jobs").split("\n\n")
    return [job for job in jobs if "JobState=PENDING" in job and setting not in job]


def test_jobs_that_a_node_could_not_begin_run_elsewhere(
    desk: Desk, site: Cluster, broken: Path
) -> None:
    """The node eats most of the grid at once; runners of the others do these trials, too."""
    broken.write_text("n2")
    number = desk.submit(desk.project(TRAINS), *grid(8))
    wait_for(lambda: running_alone(site, 2), PATIENCE, "the bad node to fail the others")
    assert "ended on n2" in desk.run("experiment", "describe", str(number)).stdout
    (desk.experiment(number).path / "go").touch()
    assert waits(desk, number) == 0
    trials = [desk.trial(number, index) for index in range(8)]
    assert {run.outcome for trial in trials for run in trial.runs} == {"completed"}
    described = desk.run("experiment", "describe", str(number)).stdout
    assert "n2: 6 runs or jobs failed there at once" in described
    assert "new jobs avoid it" in described


def test_a_run_that_fails_by_its_node_goes_elsewhere(desk: Desk, site: Cluster) -> None:
    """Without a restart used; after the third failure waiting jobs avoid the node."""
    variables = "environment.environment_variables=[BAD_NODE=n2]"
    number = desk.submit(desk.project(TRAINS), *grid(8), variables, "max_restarts=0")
    wait_for(lambda: desk.view(number).excluded_nodes == ("n2",), PATIENCE, "an exclusion")
    wait_for(lambda: not waiting_without(site, "ExcNodeList=n2"), PATIENCE, "jobs to avoid n2")
    (desk.experiment(number).path / "go").touch()
    assert waits(desk, number) == 0
    moved = [trial for i in range(8) if len((trial := desk.trial(number, i)).runs) > 1]
    assert len(moved) == 3
    for trial in moved:
        assert [run.outcome for run in trial.runs] == ["restart", "completed"]
        assert trial.restarts == 0 and trial.runs[1].job.nodes != ("n2",)
        assert "on n2, while other nodes work" in (trial.runs[0].reason or "")


def test_a_fault_of_the_code_excludes_no_node(desk: Desk) -> None:
    """Every run fails at once: the trials end as ever, and no node is to blame."""
    number = desk.submit(desk.project("raise SystemExit(3)"), *grid(4), "max_restarts=1")
    assert waits(desk, number) == 1
    assert not desk.view(number).failing_nodes
    assert [desk.outcomes(number, index) for index in range(4)] == [["restart", "error"]] * 4


def test_an_experiment_that_lacks_a_trial_is_not_complete(desk: Desk, site: Cluster) -> None:
    """The runner of one trial is killed after the other has completed; `activate` mends it."""
    number = desk.submit(desk.project(TRAINS), *grid(2))
    wait_for(lambda: desk.trial(number, 0).steps == desk.trial(number, 1).steps == 1, PATIENCE)
    (desk.experiment(number).path / "go-0").touch()  # of trial 1: a grid is taken from its end
    wait_for(lambda: desk.trial(number, 1).state == "COMPLETED", PATIENCE)
    wait_for(lambda: site.job(f"{desk.job(number)}_1")["JobState"] == "COMPLETED", PATIENCE)
    (runner,) = find_processes(f"detslurm.exec.runner {desk.experiment(number).path} ")
    os.kill(runner, signal.SIGKILL)
    site.wait_state(f"{desk.job(number)}_0", "FAILED")
    assert waits(desk, number) == 1
    view = desk.view(number)
    assert (view.state, view.progress < 1) == ("ERROR", True)
    desk.run("experiment", "activate", str(number))
    (desk.experiment(number).path / "go").touch()
    assert waits(desk, number) == 0
    assert desk.view(number).state == "COMPLETED"
