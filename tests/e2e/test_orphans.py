"""The node agent is killed, and what it has started lives on: Slurm here tracks no processes."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.cluster.processes import alive
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.processes import find_program
from tests.e2e.test_failures import pid_of_code

AGENT = r"\S*python\S* -P(S \S+| -m) detslurm\.exec\.agent "  # with a module cache or without

pytestmark = pytest.mark.cluster

# The first run saves without end, beside a process that knows nothing of detslurm; the second one
# looks what is left of the first.
NEVER_ENDS = """\
    import os, pathlib, subprocess, sys
    import detslurm as det

    info = det.get_cluster_info()
    pids = pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"]) / "pids"

    def lives(pid):
        try:
            return pathlib.Path("/proc", pid, "stat").read_text().split()[2] != "Z"
        except OSError:
            return False

    if info.trial._trial_run_id > 1:
        left = list(filter(lives, pids.read_text().split()))
        sys.exit(f"still there: {left}" if left else 0)
    helper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    pids.write_text(f"{os.getpid()} {helper.pid}")
    print("pid", os.getpid(), flush=True)
    with det.core.init() as core:
        step = 0
        while True:
            step += 1
            with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                (path / "step").write_text(str(step))
            core.train.report_training_metrics(step, {"loss": 1.0})
    """


def assert_no_orphan_lives_beside_the_next_run(desk: Desk) -> None:
    """What the killed agent's run left is gone before the next begins; so are its checkpoints,
    listed or not, after `delete`."""
    number = desk.submit(desk.project(NEVER_ENDS), "max_restarts=1")
    pid_of_code(desk, number)
    desk.wait_for_steps(number, 3)
    os.kill(find_program(desk, AGENT), signal.SIGKILL)
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
    assert desk.outcomes(number) == ["restart", "completed"]
    assert "that an earlier run had left" in desk.log(number)
    desk.run("experiment", "delete", str(number), "--yes")
    assert not list((desk.store.path / "checkpoints").iterdir())


# Has nothing to do with detslurm but its mark.
STRANGER = """\
    import subprocess
    print("pid", subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, flush=True)
    subprocess.run(["sleep", "1000"])
    """


def test_where_no_next_run_comes(desk: Desk) -> None:
    """What the last run leaves is ended by its runner; its reason is that of the agent."""
    number = desk.submit(desk.project(STRANGER), "max_restarts=0")
    stranger = pid_of_code(desk, number)
    os.kill(find_program(desk, AGENT), signal.SIGKILL)
    desk.wait_for_state(number, "ERROR")
    reason = desk.trial(number).runs[0].reason or ""
    assert re.match(r"a node agent ended without a report: \S+ task 0: Killed after 0 of", reason)
    wait_for(lambda: not alive(stranger), PATIENCE, "the end of what the run has left")


def test_on_slurm(desk: Desk) -> None:
    """An ordinary user's job."""
    assert_no_orphan_lives_beside_the_next_run(desk)
