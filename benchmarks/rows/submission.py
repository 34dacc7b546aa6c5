"""Submitting a grid of 1,000 trials, all held in the queue of a real Slurm."""

from __future__ import annotations

import compileall
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import submitit

from benchmarks.bench import Bench
from benchmarks.calls import Traced, available, strace_to
from benchmarks.measure import interleaved, timed
from benchmarks.report import Row

TRIALS = 1000
CONFIG = f"""\
name: grid
entrypoint: "true"
hyperparameters:
  x: {{type: int, minval: 0, maxval: {TRIALS - 1}, count: {TRIALS}}}
searcher: {{name: grid, metric: loss, max_length: 1}}
slurm: {{slot_type: cpu}}
"""
SUBMITIT = f"""\
import submitit
executor = submitit.AutoExecutor(folder="submitit", cluster="slurm")
executor.update_parameters(
    slurm_additional_parameters={{"hold": True}}, slurm_array_parallelism={TRIALS}
)
executor.map_array(abs, range({TRIALS}))
"""


def measure(bench: Bench) -> Iterator[Row]:
    """Whole commands beside each other; then what one submission asks of Slurm and of the store."""
    grid = Grid(bench)
    ours, submitit, bare = interleaved(grid.detslurm, grid.submitit, grid.sbatch, rounds=6)
    what = f"submit a grid of {TRIALS:,}"
    yield Row(
        what=what, ours=1e3 * ours, unit="ms",
        anchor=1e3 * submitit, peer="python, submitit map_array", most=500, most_ratio=1.0,
    )  # fmt: skip
    yield Row(what=what, ours=1e3 * ours, unit="ms", anchor=1e3 * bare, peer="sbatch --array")
    yield Row(what=what, ours=grid.files(), unit="files that grow with it", most=0)
    if available():
        mine, other = grid.calls()
        yield Row(
            what=what, ours=mine.paths, unit="path calls",
            anchor=other.paths, peer="python, submitit map_array", most_ratio=0.7,
        )  # fmt: skip
        queueing = mine.executed("sbatch") - mine.executed("sbatch", "--test-only")
        yield Row(what=what, ours=queueing, unit="sbatch that queue", most=1)


class Grid:
    """An ordinary user who submits and takes back."""

    def __init__(self, bench: Bench) -> None:
        self._cluster, self._user = bench.cluster, bench.user
        assert self._user.cwd is not None
        self._folder = self._user.cwd
        (self._folder / "grid").mkdir()
        self._config = self._folder / "grid" / "experiment.yaml"
        self._config.write_text(textwrap.dedent(CONFIG))
        self._detslurm = ("detslurm", "submit", str(self._config), "--paused")
        self._submitit = (sys.executable, "-c", SUBMITIT)
        (self._folder / "array.sh").write_text("#!/bin/sh\ntrue\n")
        self._user.own(self._folder)
        # Its installation leaves no compiled modules, and the user can write none.
        compileall.compile_dir(Path(submitit.__file__).parent, quiet=2)

    def _queue(self, *argv: str) -> float:
        seconds = timed(lambda: self._user.run(*argv))
        self._cluster.cancel_all(self._user.name)
        return seconds

    def detslurm(self) -> float:
        """Seconds of `detslurm submit --paused`."""
        return self._queue(*self._detslurm)

    def submitit(self) -> float:
        """Seconds of a Python that calls submitit."""
        return self._queue(*self._submitit)

    def sbatch(self) -> float:
        """Seconds of one sbatch."""
        array = f"--array=0-{TRIALS - 1}"
        return self._queue("sbatch", "--hold", array, "--output=/dev/null", "array.sh")

    def files(self) -> int:
        """How many files a submission of 1,000 makes more than one of 200.

        Fewer than 100 trials have fewer bucket directories; from there on nothing grows.
        """
        return self._made(TRIALS) - self._made(200)

    def _made(self, trials: int) -> int:
        options = ["--config", f"hyperparameters.x.count={trials}", "--paused", "--json"]
        said = self._user.run("detslurm", "submit", str(self._config), *options).stdout
        self._cluster.cancel_all(self._user.name)
        number = json.loads(said)["data"]["experiment_id"]
        store = Path(self._user.env["DETSLURM_ROOT"])
        return sum(1 for _ in (store / "experiments" / str(number)).rglob("*"))

    def calls(self) -> tuple[Traced, Traced]:
        """The calls with a path, ours and submitit's."""
        return self._calls(self._detslurm), self._calls(self._submitit)

    def _calls(self, argv: Sequence[str]) -> Traced:
        log = self._folder / "strace"
        self._queue(*strace_to(log), *argv)
        return Traced(log.read_text().splitlines())
