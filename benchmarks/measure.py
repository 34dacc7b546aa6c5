"""Time things side by side: A B A B, the fastest of each counts."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


def interleaved(*contenders: Callable[[], float], rounds: int = 3) -> list[float]:
    """The smallest result of each contender; each gives a duration (or any cost)."""
    best = [float("inf")] * len(contenders)
    for _ in range(rounds):
        for index, contender in enumerate(contenders):
            best[index] = min(best[index], contender())
    return best


def timed(action: Callable[[], object]) -> float:
    """How long an action takes, in seconds."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


class Spent(NamedTuple):
    """What a process cost, and what it said."""

    seconds: float
    peak_mb: float
    output: str


def run(
    argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Spent:
    """Run a command to its end. Raises `RuntimeError` with its output when it fails."""
    with tempfile.TemporaryFile("w+") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            argv,
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        assert process.stdin is not None
        process.stdin.close()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit {process.returncode}\n{text}")
    return Spent(seconds, usage.ru_maxrss / 1024, text)
