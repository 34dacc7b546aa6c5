"""Scripts run by hand, seen through the commands: each one finds an end, whatever became of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from detslurm._base import process as processes
from detslurm.sdk.experiments import reconcile, unmanaged
from detslurm.store import fs, trial_metrics
from tests.cli.conftest import Detslurm
from tests.cluster.processes import started
from tests.cluster.waiting import wait_for
from tests.sdk.scenes import Scene

BEATING = "import detslurm.core._heartbeat as h; h.BEAT_SECONDS = 0.05\n"
HEAD = "import os, signal, sys, time\nimport detslurm as det\n"
OPEN = HEAD + "core = det.core.init()\n"


def script(scene: Scene, code: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Python at work on `code`, in the same store."""
    pipe = subprocess.PIPE
    env = {**os.environ, "DETSLURM_ROOT": str(scene.root)}
    argv = [sys.executable, "-c", code]
    return started(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe)


def run(scene: Scene, code: str) -> tuple[int, str]:
    """Exit status and stderr of a script that ends by itself."""
    with script(scene, code) as process:
        _, err = process.communicate(timeout=120)
    return process.returncode, err


def test_without_with(scene: Scene, detslurm: Detslurm) -> None:
    """Nothing is lost, the script says where it is recorded, and how it ended is known."""
    report = "core.train.report_training_metrics({}, {{'loss': 0.{}}})\n"
    table = "core.train.report_artifact('texts', 2, [{'text': 'hello'}])\n"
    status, err = run(scene, OPEN + report.format(1, 5) + table + report.format(2, 25))
    assert status == 0
    assert err.splitlines() == [
        "detslurm: recorded as experiment 1; `detslurm trial describe 1` shows it",
        "detslurm: step 1: loss 0.5",
        "detslurm: step 2: loss 0.25",
    ]
    assert [row.steps for row in trial_metrics(scene.store.find_trial(1))] == [1, 2]
    described = detslurm("trial", "describe", 1)
    assert "texts" in described.out.partition("Artifacts")[2], described.err
    status, err = run(scene, OPEN + "raise ValueError('bad')")
    assert status == 1
    status, err = run(scene, OPEN + "core.close(); core.close()\n" + report.format(1, 5))
    assert status == 1 and "RuntimeError: this run has ended" in err
    result = detslurm("e", "list", "--json")
    assert [row["state"] for row in result.data] == ["COMPLETED", "ERROR", "COMPLETED"]
    assert "ValueError: bad" in detslurm("e", "describe", 2).out


def test_a_forked_child_passes_by(scene: Scene, detslurm: Detslurm) -> None:
    """Neither its exception nor its reports nor its exit are the run's."""
    code = """
with det.core.init() as core:
    core.train.report_training_metrics(1, {"loss": 0.5})
    if os.fork() == 0:
        try:
            core.train.report_training_metrics(2, {"loss": 0.5})
        except RuntimeError as err:
            assert "fork" in str(err)
        raise KeyError("the child's")
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 1
    core.train.report_training_metrics(3, {"loss": 0.5})
"""
    assert run(scene, HEAD + code)[0] == 0
    assert run(scene, OPEN + "if os.fork(): os.wait()\nelse: sys.exit(1)")[0] == 0
    result = detslurm("e", "list", "--json")
    assert [row["state"] for row in result.data] == ["COMPLETED", "COMPLETED"]
    assert [row.steps for row in trial_metrics(scene.store.find_trial(1))] == [1, 3]


def test_killed_by_a_signal(scene: Scene, detslurm: Detslurm) -> None:
    """The commands see that the process is gone; `wait` ends and `delete` removes it."""
    status, _ = run(scene, OPEN + "os.kill(os.getpid(), signal.SIGKILL)")
    assert status == -signal.SIGKILL
    result = detslurm("e", "wait", 1)
    assert result.out.startswith("Experiment 1 is ERROR: process ")
    assert "has ended" in detslurm("e", "describe", 1).out
    assert detslurm("e", "delete", 1, "--yes").status == 0


def test_kill_ends_script_and_record(scene: Scene, detslurm: Detslurm) -> None:
    """A script on this host ends at once; a prompt stays, and can't report any more."""
    with script(scene, OPEN + "print(1, flush=True)\ntime.sleep(600)") as process:
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        assert detslurm("e", "delete", 1, "--yes").status == 1  # it runs
        assert detslurm("e", "kill", 1).out == "Killed experiment 1\n"
        assert process.wait(60) == -signal.SIGTERM
    typed = "sys.ps1 = '>'\n"
    more = "print(1, flush=True); input()\n" + (
        "while True: core.train.report_progress(0.5); time.sleep(0.01)"
    )
    code = HEAD + typed + BEATING + "core = det.core.init()\n" + more
    with script(scene, code) as process:
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        assert detslurm("t", "kill", 2).status == 0
        assert process.poll() is None
        _, err = process.communicate("\n", timeout=60)
        assert "RuntimeError: experiment 2 was killed" in err
    for number in (1, 2):
        assert detslurm("e", "wait", number).out == f"Experiment {number} is CANCELED\n"
        assert detslurm("e", "delete", number, "--yes").status == 0


def test_a_process_that_works_for_the_next_experiment_goes_on(scene: Scene) -> None:
    """Who asks for the end of the one before may have read it when it was still at work."""
    two = "with det.core.init():\n    pass\nwith det.core.init() as core:\n"
    waits = "    print(1, flush=True); input(); core.train.set_status('done')\n"
    with script(scene, HEAD + two + waits) as process:
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        unmanaged.end([scene.store.find_trial(1)])
        process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert scene.client.trial(2).view.status == "done"


def test_on_another_host(scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a process lives while it shows itself; one that was wrongly given up says so."""
    monkeypatch.setattr(processes, "node", lambda: "elsewhere")
    with script(scene, BEATING + OPEN + "print(1, flush=True)\ntime.sleep(600)") as process:
        assert process.stdout is not None and process.stdout.readline() == "1\n"

        def states() -> list[str]:
            return [row["state"] for row in detslurm("e", "list", "--json").data]

        assert states() == ["ACTIVE"]
        with monkeypatch.context() as hasty:
            hasty.setattr(unmanaged, "SILENT_SECONDS", -600.0)
            assert states() == ["ERROR"]
        wait_for(lambda: states() == ["ACTIVE"], 60, "the process to contradict")
        assert detslurm("e", "kill", 1).status == 0
        assert states() == ["CANCELED"]
        assert process.wait(60) == -signal.SIGTERM


def test_a_wait_sees_silence_by_its_own_clock(
    scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a new sign of life for long enough the process counts as gone. The store's clock,
    which costs a file, is read once."""
    run(scene, OPEN + "os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr(processes, "node", lambda: "elsewhere")
    asked: list[Path] = []
    monkeypatch.setattr(fs, "time_there", lambda at: asked.append(at) or time.time())  # type: ignore[func-returns-value]
    trial, known = scene.store.experiment(1).trial(1), unmanaged.Heartbeats()
    for clock, alive in ((1000.0, None), (1899.0, None), (1901.0, False)):
        found = unmanaged.job_statuses([trial], known, clock=lambda now=clock: now)  # type: ignore[misc]
        assert found[1].alive is alive
    assert detslurm("e", "list", "--json").data[0]["state"] == "ACTIVE"  # a single look
    assert len(asked) == 1


def test_killed_where_nobody_remembers_the_job(
    scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm forgets within minutes; what it does not know can't run, and the user wants its end.
    A runner of another cluster has the time to hear of that."""
    experiment = scene.experiment(2, job="7")
    for index in range(2):
        scene.run(experiment, index, ref=f"7_{index}")
    scene.queue.jobs.clear()
    assert detslurm("e", "describe", 1, "--json").data["state"] == "ACTIVE"
    scene.queue.down = True
    assert detslurm("t", "kill", 1).status == 0
    assert detslurm("t", "describe", 1, "--json").data["state"] != "CANCELED"
    scene.queue.down = False
    assert detslurm("t", "describe", 1, "--json").data["state"] != "CANCELED"
    monkeypatch.setattr(reconcile, "KILL_UNCONFIRMED_SECONDS", -1.0)
    assert detslurm("t", "describe", 1, "--json").data["state"] == "CANCELED"
    assert detslurm("e", "kill", 1).status == 0
    assert detslurm("e", "wait", 1).out == "Experiment 1 is CANCELED\n"
