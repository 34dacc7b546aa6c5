"""A job for tests: logs what happens to it, and works until it is told to go."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from detslurm.slurm import Allocation
from detslurm.slurm.allocation import SLURM_OUTPUT_FD

folder = Path.cwd()
allocation = Allocation.from_environment()
assert allocation is not None
output = Path(f"/proc/self/fd/{SLURM_OUTPUT_FD}")
before = output.stat().st_size
log = os.open(folder / f"{allocation.ref}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def say(word: str, **more: object) -> None:
    os.write(log, json.dumps({"word": word, "time": time.time(), **more}).encode() + b"\n")


def reason(allocation: Allocation) -> str | None:
    """Why Slurm ends this job: its line in the output may come after the signal."""
    until = time.monotonic() + 3
    while (found := allocation.end_reason(output, before)) is None and time.monotonic() < until:
        time.sleep(0.02)
    return found


def heard(number: int, _: object) -> None:
    name = signal.Signals(number).name
    why = reason(allocation) if allocation and number == signal.SIGTERM else None
    say(name, who=os.getpid(), why=why)
    if number == signal.SIGTERM and "stubborn" not in sys.argv:
        os._exit(143)


for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, heard)
child = None
if "child" in sys.argv:  # a grandchild in a session of its own, and a child that logs, too
    subprocess.Popen(["setsid", "sleep", "54321"])
    child = os.fork()
say(
    "start" if child != 0 else "child",
    who=os.getpid(),
    restarts=allocation.restart_count,
    ref=allocation.ref,
    nodes=allocation.nodes,
    argv=sys.argv[1:],
    python=os.popen("command -v python3").read().strip(),
    leaked=[name for name in os.environ if name in ("SLURM_ARRAY_TASK_MIN", "SUBMITIT_EXECUTOR")],
)
while not (folder / "go").exists() and not (folder / f"go-{allocation.ref}").exists():
    time.sleep(0.05)
say("done")
sys.exit(3 if "fail" in sys.argv else 0)
