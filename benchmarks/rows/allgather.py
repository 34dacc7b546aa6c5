"""`DistributedContext`: collective calls of a small object between two ranks."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.measure import Rounds, run
from benchmarks.report import Row, Skip

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def measure(bench: Bench) -> Iterator[Row]:
    """Microseconds a call over MPI beside mpi4py, and over sockets beside pyzmq by hand."""
    for name in ("zmq", "mpi4py"):
        if find_spec(name) is None:
            raise Skip(f"not installed: {name}")
    over_mpi = _seconds([*_mpirun(), sys.executable, "-m", "benchmarks.ranks", "mpi"])
    for what, ratio in (("allgather", 1.1), ("broadcast", None)):
        yield _row(f"{what}, MPI", over_mpi[what], over_mpi[f"mpi4py {what}"], "mpi4py", ratio)
    sockets = _seconds([sys.executable, "-m", "benchmarks.ranks", "sockets"])
    for transport in ("local", "tcp"):
        yield _row(
            f"allgather, {transport}", sockets[transport], sockets["pyzmq"], "pyzmq by hand", 0.5
        )  # fmt: skip


def _row(what: str, ours: Rounds, anchor: Rounds, peer: str, ratio: float | None) -> Row:
    return Row(
        what=what, ours=1e6 * ours, unit="us", anchor=1e6 * anchor, peer=peer, most_ratio=ratio
    )  # fmt: skip


def _mpirun() -> list[str]:
    """The launcher that came with the library, if one did."""
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise Skip("there is no mpirun")
    return [found, "--oversubscribe", "-n", "2"]


def _seconds(argv: list[str]) -> dict[str, Rounds]:
    output = run(argv, os.environ | AS_ROOT).output
    found = json.loads(output[output.index("{") : output.rindex("}") + 1])
    return {name: Rounds(tuple(seconds)) for name, seconds in found.items()}
