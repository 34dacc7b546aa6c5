"""Loops of `benchmarks.loops` that train in turns, each in a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from benchmarks.measure import Rounds

LOOP, BY_HAND = "us of a batch: ", "us of a batch by hand: "
"""How the lines of a loop's process begin that say what a batch takes."""


class BatchTime(NamedTuple):
    """What a batch takes in microseconds: in a loop, and by hand in turns with it."""

    loop: Rounds
    by_hand: Rounds


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

    def microseconds(self) -> tuple[float, float]:
        """Of a batch in the loop and of one by hand, when both train now."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        by_hand = float(self._said(BY_HAND))
        return float(self._said(LOOP)), by_hand

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
) -> dict[str, BatchTime]:
    """What a batch takes, by the name of each loop.

    Processes of one loop differ, so there may be several of each, one after the other, and each
    trains in so many rounds.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
    for _ in range(processes):
        with ExitStack() as stack:
            started = {
                name: stack.enter_context(Loop(argv, env, cwd)) for name, argv in loops.items()
            }
            for loop in started.values():
                loop.wait_until_ready()
            for _ in range(rounds):
                for name, loop in started.items():
                    found[name].append(loop.microseconds())
    return {
        name: BatchTime(*map(Rounds, zip(*measured, strict=True)))
        for name, measured in found.items()
    }
