"""Loops of `benchmarks.loops` that train in turns, each in a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.measure import Rounds, interleaved


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

    def microseconds(self) -> float:
        """Of a batch, when it trains now."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
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
    loops: Mapping[str, Sequence[str]],
    env: Mapping[str, str],
    cwd: Path,
    *,
    processes: int,
    rounds: int,
) -> dict[str, Rounds]:
    """What a batch takes, by the name of each loop.

    Processes of one loop differ by more than the budgets allow, so there are several of each, one
    after the other, and each trains in so many rounds.
    """
    found: dict[str, tuple[float, ...]] = dict.fromkeys(loops, ())
    for _ in range(processes):
        with ExitStack() as stack:
            started = [stack.enter_context(Loop(argv, env, cwd)) for argv in loops.values()]
            for loop in started:
                loop.wait_until_ready()
            measured = interleaved(*(loop.microseconds for loop in started), rounds=rounds)
        for name, figure in zip(loops, measured, strict=True):
            found[name] += figure.values
    return {name: Rounds(values) for name, values in found.items()}
