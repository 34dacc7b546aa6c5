"""The node agent between the code, Slurm's signals and a runner that takes its time."""

from __future__ import annotations

import signal
from pathlib import Path

from detslurm.exec.agent_protocol import PREEMPT
from tests.cluster.waiting import wait_for
from tests.exec.nodes import agent

PATIENCE = 120

# A thread prints more than any pipe holds, in lines of a megabyte.
FLOODS = """\
    import os, pathlib, threading, time
    import detslurm as det

    def flood():
        while True:
            print("x" * 1_000_000)

    here = pathlib.Path(os.environ["HERE"])
    with det.core.init() as core:
        threading.Thread(target=flood, daemon=True).start()
        (here / "floods").touch()
        while not core.preempt.should_preempt():
            time.sleep(0.01)
        (here / "preempted").touch()
        os._exit(0)
"""


def test_a_signal_reaches_the_code_while_nobody_reads_its_output(tmp_path: Path) -> None:
    """The flag is up although the agent can't write a byte."""
    with agent(tmp_path, FLOODS) as process:
        wait_for((tmp_path / "floods").exists, PATIENCE, "the flood")
        process.send_signal(signal.SIGTERM)
        wait_for((tmp_path / "preempted").exists, PATIENCE, "the code to hear of it")


def test_a_word_of_the_runner_reaches_it_too(tmp_path: Path) -> None:
    """The agent reads its orders although it can't write."""
    with agent(tmp_path, FLOODS) as process:
        wait_for((tmp_path / "floods").exists, PATIENCE, "the flood")
        assert process.stdin is not None
        process.stdin.write(f"{PREEMPT}\n".encode())
        process.stdin.flush()
        wait_for((tmp_path / "preempted").exists, PATIENCE, "the code to hear of it")
