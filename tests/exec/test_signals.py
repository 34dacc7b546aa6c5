"""Signals that are none of a process's business."""

from __future__ import annotations

import signal
import subprocess
import sys

from detslurm._base.child_processes import catching
from detslurm.exec.signals import STRAY
from tests.cluster.processes import started

SURVIVES = """
import os, signal, subprocess, sys
from detslurm.exec.signals import STRAY, discard_signals
discard_signals()
for number in STRAY:
    os.kill(os.getpid(), number)
sys.exit(subprocess.run(["sh", "-c", "kill -USR1 $$"]).returncode)
"""


def test_they_pass_and_what_is_started_does_not_ignore_them() -> None:
    """All of them, real-time signals included."""
    assert {signal.SIGHUP, signal.SIGINT, signal.SIGALRM, signal.SIGUSR1, 40} <= STRAY
    done = subprocess.run([sys.executable, "-c", SURVIVES], check=False)
    assert done.returncode == 256 - signal.SIGUSR1  # a child's end by the signal


def test_who_catches_a_signal() -> None:
    """Only whom it would not end is sent the word to dump its stacks."""
    code = (
        "import faulthandler as f, signal, time; f.register(10); print(flush=True); time.sleep(60)"
    )
    with (
        started([sys.executable, "-c", code], stdout=subprocess.PIPE) as dumps,
        started(["sleep", "60"]) as dies,
    ):
        assert dumps.stdout is not None and dumps.stdout.readline()
        assert catching([dumps.pid, dies.pid, 1 << 22], signal.SIGUSR1) == [dumps.pid]
