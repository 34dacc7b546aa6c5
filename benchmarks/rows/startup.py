"""Runner and node agent: what a job pays before the first line of the user's code."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.calls import trace
from benchmarks.experiments import agent_command, job_environment, runner_command, submitted
from benchmarks.measure import Rounds, interleaved, run
from benchmarks.report import Row
from detslurm._base.contract import EXPERIMENT_DIR
from detslurm.store import ExperimentDir

# Says when it was started, and for how long its agent and that one's parent have had a processor.
SCRIPT = (
    "date '+started %s.%N'; read agent _ < /proc/$PPID/schedstat;"
    " read -r _ _ _ parent _ < /proc/$PPID/stat; read runner _ < /proc/$parent/schedstat;"
    " echo cpu $agent $runner"
)
ENTRYPOINT = json.dumps(["sh", "-c", SCRIPT])
BARE = "print('cpu', open('/proc/self/schedstat').read())"


class Startup:
    """Starts runners and agents as a job of the local cluster does."""

    def __init__(self, bench: Bench, *, slurm: str = "", image: str = "") -> None:
        self._slurm, self._image = slurm, image
        self._folder = bench.folder()
        # Agents look at each working directory that others have left in /tmp, which says nothing.
        apart = {"TMPDIR": str(bench.folder())}
        self.environment = job_environment({**bench.environment(self._folder), **apart})
        self._experiments = 0
        self._agent = agent_command(self._experiment())

    def _experiment(self) -> ExperimentDir:
        self._experiments += 1
        place = self._folder / f"e{self._experiments}"
        place.mkdir()
        root = self._folder / "store"
        return submitted(place, root, ENTRYPOINT, slurm=self._slurm, image=self._image)

    def agent_seconds(self) -> float:
        """From the start of an agent to the user's first instruction."""
        began = time.time()
        return _started(run(self._agent, self.environment).output) - began

    def whole_seconds(self) -> float:
        """From the start of a runner, through its agent, to the user's first instruction."""
        experiment = self._experiment()
        began = time.time()
        run(runner_command(experiment), self.environment)
        return _started(_log_of(experiment.path)) - began

    def processor_seconds(self) -> tuple[float, float, float]:
        """Of a runner and an agent before the user's first instruction; then of a bare Python."""
        experiment = self._experiment()
        run(runner_command(experiment), self.environment)
        runner = _processor_seconds(_log_of(experiment.path))[1]
        # On its own: what started it in that run was a Python, too, in the same process.
        agent = _processor_seconds(run(self._agent, self.environment).output)[0]
        bare = run([sys.executable, "-c", BARE], self.environment)
        return runner, agent, _processor_seconds(bare.output)[0]

    def runner_calls(self) -> int:
        """Path calls of a runner before it starts its agent."""
        argv = runner_command(self._experiment())
        return trace(argv, self.environment).before_first_child

    def import_calls(self) -> int:
        """Path calls of importing the Core API in a user's program."""
        environment = self.environment | {EXPERIMENT_DIR: str(self._experiment().path)}
        programs = ("import detslurm.core", "pass")
        calls = [trace([sys.executable, "-c", code], environment).paths for code in programs]
        return calls[0] - calls[1]

    def agent_calls(self) -> int:
        """Path calls of an agent before it starts the entrypoint."""
        return trace(self._agent, self.environment).before_first_child


def measure(bench: Bench) -> Iterator[Row]:
    """Milliseconds and path calls of each, up to the user's first instruction."""
    startup = Startup(bench)

    def bare() -> float:
        return run([sys.executable, "-c", "pass"], startup.environment).seconds

    whole, part, python = interleaved(
        startup.whole_seconds, startup.agent_seconds, bare, rounds=7
    )  # fmt: skip
    for what, seconds in (("runner", whole - part), ("agent", part)):
        yield Row(
            what=f"{what} before the user's code", ours=1e3 * seconds, unit="ms",
            anchor=1e3 * python, peer="python -c pass", most=150,
        )  # fmt: skip
    spent = [startup.processor_seconds() for _ in range(21)]
    runner, agent, python = (Rounds(seconds) for seconds in zip(*spent, strict=True))
    for what, seconds in (("runner", runner), ("agent", agent)):
        yield Row(
            what=f"{what} before the user's code", ours=1e3 * seconds, unit="ms of processor time",
            anchor=1e3 * python, peer="python -c pass", most_ratio=2.5,
        )  # fmt: skip
    for what, calls, most in (
        ("runner", startup.runner_calls(), 250),
        ("agent", startup.agent_calls(), 220),
    ):
        yield Row(what=f"{what} before the user's code", ours=calls, unit="path calls", most=most)
    yield Row(
        what="importing the Core API in a job", ours=startup.import_calls(),
        unit="path calls", most=700,
    )  # fmt: skip


def _log_of(experiment: Path) -> str:
    (log,) = experiment.glob("trials/*/*/run-1.log")
    return log.read_text()


def _started(text: str) -> float:
    return float(text.partition("started ")[2].split()[0])


def _processor_seconds(text: str) -> list[float]:
    words = text.partition("cpu ")[2].partition("\n")[0].split()
    return [int(word) / 1e9 for word in words]
