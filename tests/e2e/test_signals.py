"""Signals that somebody sends to the steps of a job: `scancel --signal`."""

from __future__ import annotations

import pytest

from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_failures import WAITS, let_go

pytestmark = pytest.mark.cluster

# Two ranks that say which signals they get, under launchers that have no use for any of them.
SAYS_WHICH = """\
    import os, pathlib, signal, time
    import detslurm as det

    def said(number, frame):
        # A signal may come twice, and the second in the middle of the first one's line.
        os.write(1, f"got {signal.Signals(number).name}\\n".encode())

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGALRM, signal.SIGQUIT):
        signal.signal(number, said)
    go = pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"]) / "go"
    with det.core.init(distributed=det.core.DistributedContext.from_torch_distributed()) as core:
        core.distributed.allgather(None)
        print("ready", flush=True)
        while not go.exists():
            time.sleep(0.05)
    """


def test_the_run_outlives_them(desk: Desk) -> None:
    """USR1 is the stack dump; what means nothing to agent and launchers ends none of them."""
    config = desk.project(SAYS_WHICH).parent / "experiment.yaml"
    launcher = "python3 -m detslurm.launch.torch_distributed python3 train.py"
    number = desk.submit(config, f"entrypoint={launcher}", "resources.slots_per_trial=2")

    def wait_for_both(text: str) -> None:
        ranks = [f"[rank={rank}] || {text}" for rank in (0, 1)]
        wait_for(lambda: all(r in desk.log(number) for r in ranks), PATIENCE, f"{text} of both")

    wait_for_both("ready")
    for sig in ("USR2", "HUP", "INT", "ALRM", "QUIT", "USR1"):
        desk.user.run("scancel", f"--signal={sig}", desk.job(number))
        if sig not in ("USR1", "USR2"):
            wait_for_both(f"got SIG{sig}")
    wait_for_both('  File "')
    let_go(desk, number)
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert desk.outcomes(number) == ["completed"], desk.log(number)
    reason = desk.trial(number).end_reason or ""
    assert "exited with 0; SIGINT had come before" in reason, "it may have ended early"
    assert desk.log(number).count("Stack (most recent call first)") == 2


def test_a_sigterm_by_hand_is_a_preemption(desk: Desk, site: Cluster) -> None:
    """Also where it is sent to the batch script, which is then told as a cancelled one is."""
    number = desk.submit(desk.project(WAITS))
    desk.wait_for_steps(number, 1)
    desk.user.run("scancel", "--signal=TERM", "--batch", desk.job(number))
    wait_for(lambda: site.job(desk.job(number)).get("Restarts") == "1", PATIENCE, "a requeue")
    let_go(desk, number)
    desk.wait_for_state(number, "COMPLETED", "CANCELED", "ERROR")
    assert desk.outcomes(number) == ["preempted", "completed"]
    assert desk.trial(number).runs[0].reason == "asked to stop by scancel --signal=TERM"
