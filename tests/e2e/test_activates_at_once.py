"""Several `activate` at once, one of which may be killed: they queue the missing jobs once."""

from __future__ import annotations

import shutil
import signal
from contextlib import ExitStack

import pytest

from detslurm.store import fold_facts
from tests.cluster import Cluster
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_search import project
from tests.e2e.test_unmanaged_jobs import batch

pytestmark = [pytest.mark.cluster, pytest.mark.parametrize("killed", ["before", "after"])]

SEARCH = """\
    searcher:
      name: async_halving
      metric: loss
      max_length: 4
      max_trials: 3
      num_rungs: 1
      max_concurrent_trials: 3
    """

# The second element of an array dies; its next run waits.
DIES = """\
    import os, pathlib, signal, time
    import detslurm as det

    det.join_job()
    with det.core.init() as core:
        if os.environ["SLURM_ARRAY_TASK_ID"] == "2":
            while pathlib.Path("died").exists():
                time.sleep(0.1)
            pathlib.Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_one_activate(desk: Desk, number: int, killed: str) -> None:
    """An `activate` dies just before, or just after sbatch has queued its job."""
    queue = f'{shutil.which("sbatch")} "$@"\n' if killed == "after" else ""
    program = desk.write("bin/sbatch", f"#!/bin/bash\n{queue}kill -9 $PPID\n")
    program.chmod(0o755)
    path = {"PATH": f"{program.parent}:{desk.user.env['PATH']}"}
    done = desk.run("experiment", "activate", str(number), check=False, env=path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert fold_facts(desk.experiment(number)).resubmitting is not None


def activate_at_once(desk: Desk, number: int) -> None:
    """Six commands, all of which succeed."""
    command = ["detslurm", "experiment", "activate", str(number)]
    with ExitStack() as stack:
        commands = [stack.enter_context(desk.user.popen(command)) for _ in range(6)]
        for one in commands:
            _, said = one.communicate(timeout=PATIENCE)
            assert one.returncode == 0, said


def queued(desk: Desk, site: Cluster) -> list[str]:
    """The user's jobs and elements of arrays, also those that wait."""
    return site.command("squeue", "-hr", "-u", desk.user.name, "-o", "%i").split()


def test_a_search_gets_its_workers_once(desk: Desk, site: Cluster, killed: str) -> None:
    """Its workers were cancelled before they began; the new ones wait for their time, too."""
    later = 'slurm.sbatch_args=["--begin=now+1hour"]'
    number = desk.submit(project(desk, "", SEARCH), later)
    site.cancel_all(desk.user.name)
    kill_one_activate(desk, number, killed)
    activate_at_once(desk, number)
    assert len(queued(desk, site)) == 3
    workers = [job.count for job in desk.view(number).jobs if not job.standby]
    assert workers == [3, 3]


def test_a_script_of_the_users_own_is_queued_once(desk: Desk, site: Cluster, killed: str) -> None:
    """For the one element of its array that has failed."""
    desk.write("dies.py", DIES)
    job = batch(desk, "srun python3 dies.py\n", "--array=1-2")
    site.wait_state(f"{job}_1", "COMPLETED", timeout=PATIENCE)
    site.wait_state(f"{job}_2", "FAILED", timeout=PATIENCE)
    kill_one_activate(desk, 1, killed)
    activate_at_once(desk, 1)
    (again,) = queued(desk, site)
    assert list(desk.view(1).jobs[-1].refs) == [again]
    assert len(desk.view(1).jobs) == 3
    assert desk.user.cwd is not None
    (desk.user.cwd / "died").unlink()
