"""What signals do to a rank."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

BUSY = """\
import sys, threading
from detslurm.core._context import _mind_signals

def descend(depth):
    return depth and descend(depth - 1)

def work():
    while True:
        descend(30)
        exec("[number for number in range(9)]", {})

_mind_signals()
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
print("alive", flush=True)
"""


def test_a_rank_survives_any_number_of_requests_for_its_stack(tmp_path: Path) -> None:
    """While its other threads work: to read their frames at such a moment would end it."""
    argv, pipe, log = [sys.executable, "-c", BUSY], subprocess.PIPE, tmp_path / "log"
    with (
        log.open("w") as file,
        subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=file, text=True) as rank,
    ):
        assert rank.stdout is not None and rank.stdin is not None
        assert rank.stdout.readline() == "ready\n"
        for _ in range(500):
            rank.send_signal(signal.SIGUSR1)
            time.sleep(0.0005)  # signals of one kind that come together are one
        rank.stdin.close()
        assert rank.stdout.read() == "alive\n"
    assert rank.returncode == 0
    assert "(most recent call first)" in log.read_text()
