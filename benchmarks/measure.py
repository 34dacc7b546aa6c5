"""Time things side by side: A B A B, so that what disturbs the machine disturbs all of them."""

from __future__ import annotations

import operator
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True)
class Rounds:
    """A figure measured in several rounds; arithmetic goes round by round.

    What was measured in the same round of `interleaved` met the same machine, so differences and
    ratios are taken within a round, and their median counts.

    Example:
        >>> ours, theirs = Rounds((2.0, 4.0, 3.0)), Rounds((1.0, 2.0, 3.0))
        >>> (ours / theirs).median
        2.0
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a figure needs at least one round")

    @property
    def median(self) -> float:
        """The middle of all rounds."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Between which half of the rounds are."""
        if len(self.values) < 2:
            return self.values[0], self.values[0]
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    def _each(self, do: Callable[[float, float], float], other: Rounds | float) -> Rounds:
        others = other.values if isinstance(other, Rounds) else (other,) * len(self.values)
        return Rounds(tuple(do(mine, its) for mine, its in zip(self.values, others, strict=True)))

    def __add__(self, other: Rounds | float) -> Rounds:
        return self._each(operator.add, other)

    def __sub__(self, other: Rounds | float) -> Rounds:
        return self._each(operator.sub, other)

    def __mul__(self, other: Rounds | float) -> Rounds:
        return self._each(operator.mul, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Rounds | float) -> Rounds:
        return self._each(operator.truediv, other)

    def __rtruediv__(self, other: float) -> Rounds:
        return self._each(lambda mine, its: its / mine, other)


def interleaved(*contenders: Callable[[], float], rounds: int = 5) -> list[Rounds]:
    """The results of each contender; each gives a duration (or any cost)."""
    found = [[contender() for contender in contenders] for _ in range(rounds)]
    return [Rounds(values) for values in zip(*found, strict=True)]


def timed(action: Callable[[], object]) -> float:
    """How long an action takes, in seconds."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


class Spent(NamedTuple):
    """What a process cost, and what it said."""

    seconds: float
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
        process.wait()
        seconds = time.perf_counter() - began
        assert process.stdin is not None
        process.stdin.close()
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit {process.returncode}\n{text}")
    return Spent(seconds, text)


_PEAK = """
import os, sys
child = os.posix_spawnp(
    sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)]
)
_, status, usage = os.wait4(child, 0)
print(usage.ru_maxrss / 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak_mb(argv: Sequence[str], env: Mapping[str, str]) -> float:
    """The most memory that a command has, in MB.

    It is started by a small process: the kernel counts that of which a command was forked, too.
    Raises `RuntimeError` as `run` does.
    """
    began = [sys.executable, "-ISc", _PEAK, *argv]
    return float(run(began, env).output.splitlines()[-1])
