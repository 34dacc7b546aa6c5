"""Runs that hold slots and do nothing, on a real cluster."""

from __future__ import annotations

import textwrap

import pytest

from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_torch_distributed import LAUNCHED, TRAIN
from tests.envelope import unwrap

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

# The last rank of a first run stops; all others wait for it in a collective operation.
HANGS = textwrap.dedent(TRAIN).replace(
    "        step += 1\n",
    "        step += 1\n"
    "        if step == 12 and rank == size - 1 and info.latest_checkpoint is None:\n"
    "            os.kill(os.getpid(), 19)\n",
)
TWO_NODES = ("resources.slots_per_trial=2", "slurm.slots_per_node=1", f"entrypoint={LAUNCHED}")
WAITS = """\
import pathlib, time

begin = time.monotonic()
for name in {}:
    while not pathlib.Path(FOLDER, name).exists():
        {}
    print("has seen", name, flush=True)
"""
# Twice what counts as idle; on a machine too busy for that, it waits for a CPU.
COMPUTES = "time.sleep(0.01 * (time.process_time() > 0.1 * (time.monotonic() - begin)))"


def guarded(action: str) -> str:
    """The override for a guard that waits half a minute."""
    return f"slurm.idle_guard={{minutes: 0.5, action: {action}}}"


def test_runs_that_do_nothing(desk: Desk) -> None:
    """A hung rank restarts its trial; an idle run is shown as long as it is, or its experiment
    is paused until somebody activates it; one that computes silently is never touched."""
    folder = desk.user.cwd
    assert folder is not None

    def waiting(how: str, *names: str) -> str:
        return WAITS.format(names, how).replace("FOLDER", repr(str(folder)))

    hung = desk.submit(
        desk.project(HANGS, "hyperparameters: {held_at: 0}", "hung"),
        *TWO_NODES,
        guarded("restart"),
    )
    idle = desk.submit(
        desk.project(waiting("time.sleep(0.1)", "go", "end"), name="idle"), guarded("warn")
    )
    lazy = desk.submit(
        desk.project(waiting("time.sleep(0.1)", "end"), name="lazy"), guarded("pause")
    )
    silent = desk.submit(desk.project(waiting(COMPUTES, "end"), name="silent"), guarded("pause"))

    desk.wait_for_log(idle, "warning: the run holds its slots idle")
    shown = desk.run("experiment", "describe", str(idle))
    assert "RUNNING (idle)" in shown.stdout
    reason = "nothing was computed, printed or reported for 0.5 minutes"
    trial = desk.trial_dir(idle).id
    assert reason in desk.run("trial", "describe", str(trial)).stdout
    listed = desk.run("experiment", "list")
    assert f"trial {trial} of experiment {idle} holds its slots idle" in listed.stderr
    assert str(silent) not in listed.stderr

    assert desk.wait_for_state(hung, "COMPLETED", "ERROR") == "COMPLETED"
    assert desk.outcomes(hung) == ["restart", "completed"], desk.log(hung)
    first, second = desk.trial(hung).runs
    assert reason in (first.reason or "") and "are stopped (SIGSTOP)" in (first.reason or "")
    assert "restart 1 of 5" in (first.reason or "") and second.resumed_steps == 10
    (figures,) = unwrap(desk.run("e", "efficiency", str(hung), "--json").stdout)
    assert figures["steps_lost"] in (1, 2) and figures["nodes"] == 2
    assert figures["slot_hours_wasted"] > 0.4 * 30 * 2 / 3600

    assert desk.wait_for_state(lazy, "PAUSED", "COMPLETED", "ERROR") == "PAUSED"
    assert reason in desk.run("experiment", "describe", str(lazy)).stdout
    wait_for(lambda: desk.trial(lazy).runs[-1].outcome, PATIENCE, "the paused run's end")

    (folder / "go").touch()
    desk.wait_for_log(idle, "the run is at work again")
    assert "(idle)" not in desk.run("experiment", "describe", str(idle)).stdout
    (folder / "end").touch()
    desk.run("experiment", "activate", str(lazy))
    assert desk.wait_for_state(lazy, "COMPLETED", "ERROR") == "COMPLETED"
    assert desk.outcomes(lazy) == ["paused", "completed"]
    for number in (idle, silent):
        assert desk.wait_for_state(number, "COMPLETED", "ERROR", "PAUSED") == "COMPLETED"
        assert desk.outcomes(number) == ["completed"]
