"""Sites that limit how many jobs one may have: all is submitted in the end, and nothing twice."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from detslurm.store import fold_facts
from tests.cluster import Cluster, ClusterSpec, guarded, missing_programs
from tests.cluster.waiting import wait_for
from tests.conftest import Login
from tests.e2e.desk import PATIENCE, Desk
from tests.envelope import unwrap

pytestmark = pytest.mark.cluster

PRINTS = "import os; print(os.environ['DET_HPARAMS'])"


@pytest.fixture(scope="module")
def enforcing() -> Iterator[Cluster]:
    """A cluster that enforces limits."""
    if missing := missing_programs(accounting=True):
        pytest.skip(f"no Slurm cluster: not installed: {', '.join(missing)}")
    extra = ("AccountingStorageEnforce=limits,qos",)
    with guarded(Cluster(ClusterSpec(name="limits", nodes=2, extra=extra))) as cluster:
        cluster.command("sacctmgr", "-i", "add", "account", "lab")
        yield cluster


@pytest.fixture
def desk(enforcing: Cluster, login: Login) -> Desk:
    """An ordinary user there."""
    user = login(enforcing, "alice")
    enforcing.command("sacctmgr", "-i", "add", "user", user.name, "account=lab", check=False)
    return Desk(user)


def limit(cluster: Cluster, *settings: str) -> None:
    cluster.command("sacctmgr", "-i", "modify", "qos", "normal", "set", *settings)


@pytest.fixture(autouse=True)
def no_limit(enforcing: Cluster) -> Iterator[None]:
    """Each test ends without the limits that it has set."""
    yield
    limit(enforcing, "MaxSubmitJobsPerUser=-1", "MaxTRESPerJob=cpu=-1")


def shim(desk: Desk, program: str, text: str) -> dict[str, str]:
    """What a user exports who has this in place of one of Slurm's programs."""
    path = desk.write(f"shim/{program}", f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return {"PATH": f"{path.parent}:{desk.user.env['PATH']}"}


def grid(desk: Desk, trials: int, script: str = PRINTS) -> list[str]:
    """What `submit` is given for a grid of this many trials."""
    values = f"hyperparameters.x={{type: int, minval: 1, maxval: {trials}, count: {trials}}}"
    overrides = ("searcher.name=grid", "searcher.max_concurrent_trials=0", values)
    return [str(desk.project(script)), *(word for one in overrides for word in ("--config", one))]


def points(desk: Desk, number: int) -> list[int]:
    return sorted(t.hparams["x"] for t in desk.view(number).trials if t.hparams)


def test_a_grid_beyond_the_limit_is_trained_to_its_end(desk: Desk, enforcing: Cluster) -> None:
    """Part of it is submitted; these jobs take the rest, each trial once, and nobody helps."""
    limit(enforcing, "MaxSubmitJobsPerUser=6")
    desk.user.run(
        "sbatch", "--wait", "-o", "/dev/null", "--wrap=true"
    )  # shows Slurm's use of limits
    config = grid(desk, 20)
    dry = desk.run("submit", *config, "--dry-run")
    reason = "limit MaxSubmitJobsPerUser=6 of QOS normal"
    assert f"6 of 20 jobs are submitted now ({reason})" in dry.stderr
    assert "arrays: 6 trials, 6 at once" in dry.stdout and "submitted later: 14" in dry.stdout
    done = desk.run("submit", *config, "--paused")
    assert "Queued 6 of 20 trials" in done.stdout
    assert f"6 of 20 submitted ({reason})" in desk.run("experiment", "list").stderr
    assert f"6 of 20 submitted ({reason})" in desk.run("experiment", "describe", "1").stdout
    full = desk.run("submit", *config, check=False)
    assert full.returncode != 0 and "Traceback" not in full.stderr
    assert f"no room for another job of yours in the queue ({reason}" in full.stderr
    desk.run("experiment", "activate", "1")
    desk.wait_for_state(1, "COMPLETED")
    assert points(desk, 1) == list(range(1, 21))
    assert all(desk.outcomes(1, index) == ["completed"] for index in range(20))
    assert "submitted" not in desk.run("experiment", "list").stderr


def test_shares_of_several_trials_beyond_the_limit(desk: Desk, enforcing: Cluster) -> None:
    """Two trials a job: what is taken over and what is submitted later are shares of two, too."""
    limit(enforcing, "MaxSubmitJobsPerUser=2")
    config = [*grid(desk, 11), "--config", "slurm.trials_per_job=2"]
    done = desk.run("submit", *config, "--paused")
    assert "Queued 4 of 11 trials" in done.stdout
    limit(enforcing, "MaxSubmitJobsPerUser=4")
    desk.run("experiment", "activate", "1")
    desk.wait_for_state(1, "COMPLETED")
    assert points(desk, 1) == list(range(1, 12))
    assert all(desk.outcomes(1, index) == ["completed"] for index in range(11))
    jobs = fold_facts(desk.experiment(1)).jobs
    assert any(job.each == 2 and not job.adopted for job in jobs[1:]), "some more were submitted"


WAITS = """\
import json, os, pathlib, time
if json.loads(os.environ["DET_HPARAMS"])["x"] >= 7:  # a grid begins with its largest values
    while not pathlib.Path(os.environ["GO"]).exists():
        time.sleep(0.05)
"""
DIES = """\
case "$*" in *batch-announced-*)
    if mkdir "$GO.once" 2>/dev/null; then
        {0} "$@"
        kill -9 $PPID
    fi
esac
exec {0} "$@"
"""


@pytest.mark.parametrize("queued", [True, False])
def test_a_job_that_dies_while_it_submits_more(
    desk: Desk, enforcing: Cluster, queued: bool
) -> None:
    """Killed between the announcement and the record of it: no trial is lost, none runs twice."""
    assert desk.user.cwd is not None
    go = desk.user.cwd / "go"
    limit(enforcing, "MaxSubmitJobsPerUser=2")
    real = shutil.which("sbatch", path=desk.user.env["PATH"])
    text = DIES.format(real) if queued else DIES.format(real).replace(f'{real} "$@"', ":", 1)
    env = shim(desk, "sbatch", text) | {"GO": str(go)}
    desk.run("submit", *grid(desk, 8, WAITS), env=env)
    running = ("RUNNING", "RUNNING")
    wait_for(lambda: tuple(t.state for t in desk.view(1).trials[:2]) == running, PATIENCE, "two")
    limit(enforcing, "MaxSubmitJobsPerUser=5")
    go.touch()
    desk.wait_for_state(1, "COMPLETED")
    assert (go.parent / "go.once").exists()
    assert points(desk, 1) == list(range(1, 9))
    assert all(desk.outcomes(1, index) == ["completed"] for index in range(8))
    facts = fold_facts(desk.experiment(1))
    assert not facts.sending and not facts.unsubmitted


def test_a_limit_that_nothing_shows(desk: Desk, enforcing: Cluster) -> None:
    """sbatch alone tells: half of the array is tried, and half of that; the rest follows."""
    limit(enforcing, "MaxSubmitJobsPerUser=4")
    env = shim(desk, "sacctmgr", "exit 1")
    done = desk.run("submit", *grid(desk, 12), env=env)
    assert "Queued 3 of 12 trials" in done.stdout
    assert "(limit QOSMaxSubmitJobPerUserLimit)" in desk.run("experiment", "describe", "1").stdout
    desk.wait_for_state(1, "COMPLETED")
    assert points(desk, 1) == list(range(1, 13))


def test_what_could_never_start_is_refused(desk: Desk, enforcing: Cluster) -> None:
    """By the limit's name, before anything is queued; a wrong account, too."""
    limit(enforcing, "MaxTRESPerJob=cpu=2")
    config = str(desk.project(PRINTS))
    refused = desk.run("submit", config, "--config", "resources.slots_per_trial=4", check=False)
    assert refused.returncode != 0 and "Traceback" not in refused.stderr
    assert "needs 4 CPUs, and QOS normal allows 2 (MaxTRESPerJob cpu=2)" in refused.stderr
    refused = desk.run("submit", config, "--config", "slurm.account=nobody-pays", check=False)
    assert refused.returncode != 0 and "set slurm.account" in refused.stderr
    assert unwrap(desk.run("experiment", "list", "--all", "--json").stdout) == []
    assert enforcing.queued(desk.user.name) == []


REPORTS = """\
from detslurm import core
with core.init() as context:
    context.train.report_validation_metrics(1, {"loss": 1.0})
"""


def test_a_search_with_fewer_workers(desk: Desk, enforcing: Cluster) -> None:
    """One place is for the worker that comes when the others are gone."""
    limit(enforcing, "MaxSubmitJobsPerUser=3")
    searcher = "searcher={name: async_halving, metric: loss, max_trials: 6, num_rungs: 1,"
    searcher += " max_concurrent_trials: 6, max_length: {batches: 1}}"
    done = desk.run("submit", str(desk.project(REPORTS)), "--config", searcher)
    assert "the search begins with 2 of 6 workers (limit MaxSubmitJobsPerUser=3" in done.stderr
    desk.wait_for_state(1, "COMPLETED")
