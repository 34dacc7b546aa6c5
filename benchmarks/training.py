"""Loops of `benchmarks.loops` that train in turns, each in a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.measure import Rounds, interleaved

BY_HAND = "by hand"
"""The name of the loop by hand; it shares the process of the loop that it measures."""


class Loop:
    """A process that has imported all that it needs, and trains whenever it is asked."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        pipe = subprocess.PIPE
        self._command = " ".join(argv)
        self._process = subprocess.Popen(
            argv, env=env, cwd=cwd, text=True, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.kill()
        with self._process:
            pass  # stdin is closed, and it ends

    def wait_until_ready(self) -> None:
        """Wait until it has imported all."""
        self._said("ready")

    def microseconds(self, name: str) -> float:
        """Of a batch, when the loop of this name trains now."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return float(self._said("microseconds "))

    def _said(self, begin: str) -> str:
        """The rest of the next such line. Raises `RuntimeError` with the output if none comes."""
        output = []
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(begin):
                return line.removeprefix(begin)
            output.append(line)
        raise RuntimeError(f"{self._command}: exit {self._process.wait()}\n{''.join(output)}")


def microseconds(
    loops: Mapping[str, tuple[str, ...]],
    env: Mapping[str, str],
    cwd: Path,
    *,
    processes: int,
    rounds: int,
) -> dict[str, Rounds]:
    """What a batch takes, by the name of each loop; those of one command line share a process.

    Processes of one loop differ by more than the budgets allow, so there are several of each, one
    after the other, and each trains in so many rounds.
    """
    found: dict[str, tuple[float, ...]] = dict.fromkeys(loops, ())
    for _ in range(processes):
        with ExitStack() as stack:
            started = {
                argv: stack.enter_context(Loop(argv, env, cwd)) for argv in set(loops.values())
            }
            for loop in started.values():
                loop.wait_until_ready()
            training = [partial(started[argv].microseconds, name) for name, argv in loops.items()]
            measured = interleaved(*training, rounds=rounds)
        for name, figure in zip(loops, measured, strict=True):
            found[name] += figure.values
    return {name: Rounds(values) for name, values in found.items()}
