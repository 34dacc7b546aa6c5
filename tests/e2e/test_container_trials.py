"""`slurm.container` with real runtimes: an ordinary user's jobs in an image without detslurm."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.containers import leftovers
from tests.e2e import exact
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.exact import HELD_AT
from tests.e2e.test_main_job import end_soon, make_room

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("containers")]

PATH = "/opt/own/bin:/usr/bin:/bin"  # for the image alone
HOSTILE = 'a "b" $(touch x) \' \\ =\nsecond, ü:;'

# Prints what it sees of the image and of the node, saves when it is preempted, and goes on.
TRAIN = """\
    import json, os, sys, time
    from pathlib import Path
    import detslurm as det

    info = det.get_cluster_info()
    facts = {
        "python": sys.executable,
        "cwd": os.getcwd(),
        "files": sorted(p.name for p in Path("/run/determined/workdir").glob("[a-z]*")),
        "data": Path("/data/here/it is").read_text(),
        "hostile": os.environ["HOSTILE"],
        "path": os.environ["PATH"],
        "conda": os.environ.get("CONDA_PREFIX"),
        "uid": os.getuid(),
        "umask": f"{os.umask(0o77):o}",
        "home": os.environ["HOME"],
        "hooked": os.environ.get("HOOKED"),
    }
    print("FACTS", json.dumps(facts), flush=True)
    with det.core.init() as core:
        step = 0
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                step = int((path / "step").read_text())
        if step:
            raise SystemExit(0)
        core.train.report_training_metrics(1, {"loss": 1.0})
        while not core.preempt.should_preempt():
            time.sleep(0.05)
        with core.checkpoint.store_path({"steps_completed": 7}) as (path, _):
            (path / "step").write_text("7")
"""


def facts(desk: Desk, number: int) -> list[dict[str, object]]:
    """The surroundings that each run has printed."""
    lines = re.findall(r"FACTS (\{.*\})", desk.log(number))
    return [json.loads(line) for line in lines]


RUNTIMES = ["apptainer", "charliecloud", pytest.param("podman", marks=pytest.mark.nightly)]


@pytest.fixture(params=RUNTIMES)
def container(request: pytest.FixtureRequest, image: Path, newer_image: Path) -> list[str]:
    """The options that start an image with a runtime."""
    runtime, kind = "apptainer" if request.param == "sif" else request.param, request.param
    request.getfixturevalue(runtime)
    # Where there is Apptainer, our Python is newer than the images': one has a msgspec of its own.
    given = {"apptainer": newer_image, "charliecloud": image}
    name = given[kind] if kind in given else request.getfixturevalue(f"{kind}_image")
    return [f"slurm.container={runtime}", f"environment.image={name}"]


def project(desk: Desk) -> Path:
    """The configuration of a project with data, a hook and a hostile variable."""
    desk.write("data/it is", "seen")
    desk.write("project/startup-hook.sh", "export HOOKED=$PWD")
    variables, data = [f"HOSTILE={HOSTILE}", f"PATH={PATH}"], f"{desk.user.cwd}/data"
    config = f"""\
        environment: {{environment_variables: {json.dumps(variables)}}}
        bind_mounts: [{{host_path: {data}, container_path: /data/here}}]
        """
    return desk.project(TRAIN, config)


def test_preempted_in_a_container(desk: Desk, slurm: Cluster, container: list[str]) -> None:
    """The code sees its directory, the store, its data and its variables; it saves, and goes on.
    The container leaves nothing behind."""
    login = {"XDG_RUNTIME_DIR": "/run/user/4711", "CONDA_PREFIX": "/opt/conda"}
    desk.user.env.update(login)
    number = desk.submit(project(desk), "resources.resource_pool=low", *container)
    desk.wait_for_steps(number, 1)
    make_room(desk)
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert desk.outcomes(number) == ["preempted", "completed"], desk.log(number)
    for seen in facts(desk, number):
        cwd = str(seen.pop("cwd"))
        assert seen == {
            "conda": None,
            "data": "seen",
            "files": ["experiment.yaml", "startup-hook.sh", "train.py"],
            "hooked": cwd,
            "home": str(desk.user.home),
            "hostile": HOSTILE,
            "path": PATH,
            "python": "/usr/bin/python3",
            "uid": desk.user.uid,
            "umask": "22",
        }
    wait_for(lambda: not leftovers(slurm, desk.user), PATIENCE, "nothing left")


@pytest.mark.parametrize("container", [*RUNTIMES, "sif"], indirect=True)
def test_killed_and_paused_in_a_container(desk: Desk, slurm: Cluster, container: list[str]) -> None:
    """Where Slurm has killed the agent, too, the next run removes what is left of Podman's
    container."""
    entrypoint = "entrypoint=cd /run/determined/workdir && python3 train.py"  # as Determined's do
    killed = desk.submit(project(desk), *container, entrypoint)
    desk.wait_for_steps(killed, 1)
    desk.run("experiment", "kill", str(killed))
    desk.wait_for_state(killed, "CANCELED")
    assert desk.outcomes(killed) == ["killed"]
    paused = desk.submit(project(desk), *container)
    desk.wait_for_steps(paused, 1)
    desk.run("experiment", "pause", str(paused))
    wait_for(lambda: desk.outcomes(paused) == ["paused"], PATIENCE, "the end of the run")
    wait_for(lambda: not leftovers(slurm, desk.user), PATIENCE, "nothing left")


def test_a_container_that_can_not_begin(desk: Desk, container: list[str]) -> None:
    """It is tried twice and never taken for a failure of the code; the reason repeats the runtime's
    own words."""
    runtime = container[0].partition("=")[2]
    image = "environment.image=localhost/nowhere:1"
    number = desk.submit(desk.project("print(1)"), "max_restarts=0", container[0], image)
    desk.wait_for_state(number, "ERROR")
    trial = desk.trial(number)
    runs = trial.runs
    assert (len(runs), trial.restarts) == (2, 0)
    for run in runs:
        assert run.reason is not None
        assert run.reason.startswith(f"the container could not begin; {runtime} exited with ")
        assert "localhost/nowhere:1" in run.reason


@pytest.mark.usefixtures("podman")
@pytest.mark.nightly
def test_a_private_tmp(desk: Desk, podman_image: str) -> None:
    """Temporary files have a place there, and values for a tracker are recorded."""
    code = """\
        import os, tempfile
        print("SEES", tempfile.gettempdir(), os.path.exists(os.environ["DETSLURM_RECORD"]))
        print("WROTE", os.path.exists(tempfile.mkstemp(dir=os.environ["TMPDIR"])[1]))
        """
    image = f"environment.image={podman_image}"
    options = "slurm.container=podman", "slurm.private_tmp=true", image
    number = desk.submit(desk.project(code, "record: [tensorboard]\n"), *options)
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    log = desk.log(number)
    assert "SEES /tmp True\n" in log and "WROTE True\n" in log


@pytest.mark.usefixtures("charliecloud")
def test_a_home_that_the_nodes_do_not_have(desk: Desk, image: Path) -> None:
    """It is not mounted, and the code runs as it would without a container."""
    number = desk.submit(
        desk.project("print('done')"),
        "slurm.container=charliecloud",
        f"environment.image={image}",
        "slurm.setup=['export HOME=/nonexistent/home']",
    )
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert desk.outcomes(number) == ["completed"], desk.log(number)


# Only the tests of other Slurms have Apptainer, and they leave out what is nightly.
@pytest.mark.parametrize(
    "container",
    [
        "sif",
        pytest.param("charliecloud", marks=pytest.mark.nightly),
        pytest.param("podman", marks=pytest.mark.nightly),
    ],
    indirect=True,
)
def test_a_time_limit_and_a_dead_node(desk: Desk, slurm: Cluster, container: list[str]) -> None:
    """The training in containers has the bits of one in one go, without a restart."""
    held = (HELD_AT, 3 * HELD_AT)
    options = ("slurm.time=10", "max_restarts=0", "slurm.signal_lead=50")
    number = desk.submit(exact.project(desk, *held), *container, *options)
    desk.wait_for_steps(number, held[0])
    end_soon(slurm, desk.job(number))
    wait_for(lambda: desk.outcomes(number)[:1] == ["time_limit"], PATIENCE, "the warning")
    slurm.command("scontrol", "update", f"JobId={desk.job(number)}", "TimeLimit=10")
    desk.wait_for_steps(number, held[1])
    node = slurm.job(job := desk.job(number))["NodeList"]
    slurm.kill_node(node)
    slurm.command("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power")
    try:
        slurm.wait_state(job, "PENDING", "RUNNING", "COMPLETED")
        desk.wait_for_state(number, "COMPLETED")
    finally:
        slurm.boot_node(node)
    assert desk.outcomes(number) == ["time_limit", "lost", "completed"]
    exact.assert_undisturbed(desk, number)
    wait_for(lambda: not leftovers(slurm, desk.user), PATIENCE, "nothing left")
