"""`detslurm ui` on the real cluster: a training that goes on, watched through the socket."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import User
from tests.cluster.waiting import wait_for
from tests.e2e.desk import Desk
from tests.look.http_requests import get
from tests.look.ui_process import started

pytest.importorskip("plotly")
pytestmark = pytest.mark.cluster

# One step for each that the file names, so that the test says how far it gets.
STEPS = """\
    import pathlib, time
    import detslurm as det

    with det.core.init() as core:
        step, wanted = 0, pathlib.Path("{wanted}")
        while step < 9:
            while step < int(wanted.read_text()):
                step += 1
                core.train.report_validation_metrics(step, {{"loss": 1 / step}})
            time.sleep(0.1)
"""
OPEN = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


def trial(socket: Path, number: int) -> Any:
    """The trial of an experiment, as its page gets it."""
    data = json.loads(get(socket, f"/experiments/{number}/snapshot.json").body)
    return data["experiments"][0]["trials"][0]


def counting(desk: Desk, program: str) -> tuple[Path, Path]:
    """A directory for PATH where a program notes each of its calls, and the notes."""
    real = desk.user.run("which", program).stdout.strip()
    notes = desk.write(f"bin/{program}.calls", "")
    script = desk.write(f"bin/{program}", f'#!/bin/sh\necho >> {notes}\nexec {real} "$@"\n')
    script.chmod(0o755)
    return script.parent, notes


def test_a_running_experiment_is_watched(desk: Desk, bob: User) -> None:
    """The page is there, its data grow with the training; bob can't open the socket, and Slurm is
    asked once in half a minute, however often somebody looks."""
    wanted = desk.write("wanted", "1")

    def want(steps: int) -> None:
        """In one piece: the job reads it all the time."""
        desk.write("wanted.new", str(steps)).replace(wanted)

    number = desk.submit(desk.project(STEPS.format(wanted=wanted)))
    desk.wait_for_steps(number, 1)
    folder, calls = counting(desk, "squeue")
    env = {"PATH": f"{folder}:{desk.user.env['PATH']}"}
    begun = time.monotonic()
    with started(desk.user.popen(["detslurm", "ui"], env=env)) as running:
        assert f'href="experiments/{number}/"' in get(running.socket).text
        assert f"Experiment {number}: test" in get(running.socket, f"/experiments/{number}/").text
        found = trial(running.socket, number)
        assert (found["state"], found["steps"]) == ("RUNNING", 1)
        want(5)
        wait_for(lambda: trial(running.socket, number)["steps"] == 5, 60, "the fifth step")
        assert bob.run("python3", "-c", OPEN, str(running.socket), check=False).returncode == 1
        want(9)
        wait_for(lambda: trial(running.socket, number)["state"] == "COMPLETED", 60, "the end")
        assert len(calls.read_text()) <= 1 + (time.monotonic() - begun) // 30
        running.process.send_signal(signal.SIGHUP)
        assert running.process.wait(120) == 130
        assert not running.socket.exists()
