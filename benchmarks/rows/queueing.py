"""`job list` of a queue of two thousand jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.calls import Traced, trace
from benchmarks.measure import interleaved, run
from benchmarks.queues import slurm_commands
from benchmarks.report import Row

COMMAND = ["detslurm", "job", "list"]


def measure(bench: Bench) -> Iterator[Row]:
    """Our own time: squeue is one that has its answer ready."""
    folder = bench.folder()
    environment = bench.environment(folder)
    commands = slurm_commands(folder, 2000, Path(environment["DETSLURM_ROOT"]))
    environment["PATH"] = f"{commands}:{environment['PATH']}"
    environment["SLURM_CONF"] = str(folder / "slurm.conf")
    bare = ["detslurm", "--help"]
    seconds, other = interleaved(
        lambda: run(COMMAND, environment).seconds, lambda: run(bare, environment).seconds, rounds=5
    )
    what = "job list of 2,000 jobs"
    yield Row(
        what=what, ours=1e3 * seconds, unit="ms",
        anchor=1e3 * other, peer="detslurm --help", most_ratio=5,
    )  # fmt: skip
    traced = trace(COMMAND, environment)
    yield Row(what=what, ours=calls_of_squeue(traced, commands), unit="calls of squeue", most=1)
    yield Row(
        what=what, ours=len(traced.under(folder / "store")), unit="path calls in the store", most=10
    )  # fmt: skip


def calls_of_squeue(traced: Traced, commands: Path) -> int:
    """How often the squeue in that directory was started."""
    return sum(f'execve("{commands}/squeue"' in call for call in traced.under(commands))
