"""Path calls are counted by strace: the same on every machine, unlike milliseconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.bench import Bench
from benchmarks.calls import available, trace
from benchmarks.experiments import finished
from benchmarks.measure import run
from benchmarks.queues import slurm_commands
from benchmarks.rows import queueing
from benchmarks.rows.listing import COMMAND
from benchmarks.rows.reporting import calls_of_a_report
from benchmarks.rows.startup import Startup
from detslurm.store import RunLog, Store
from tests.sdk.scenes import Scene

pytestmark = pytest.mark.skipif(not available(), reason="strace is not installed")


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as session:
        yield session


@pytest.fixture
def environment(bench: Bench) -> dict[str, str]:
    return bench.environment(bench.folder())


def test_help(environment: dict[str, str]) -> None:
    """`detslurm --help` looks at no more than 900 paths, none of them in a store."""
    run(["detslurm", "--help"], environment)
    calls = trace(["detslurm", "--help"], environment)
    assert calls.paths <= 900
    assert not calls.under(Path(environment["DETSLURM_ROOT"]))


def test_runner_and_agent(bench: Bench) -> None:
    """Runner and agent reach the user's first instruction with few calls each, and the Core
    API is imported with few, most of them for the standard library."""
    startup = Startup(bench)
    startup.whole_seconds()
    assert startup.runner_calls() <= 250
    assert startup.agent_calls() <= 220
    assert startup.import_calls() <= 700


SOFTWARE = """
import sys
from pathlib import Path
from detslurm.core import _context
from detslurm.store import ExperimentDir, provenance, software
trial = ExperimentDir.at(Path(sys.argv[1])).trial(1)
if sys.argv[2] == "noted":
    _context.note_software(trial, 1)
"""


def test_software_of_a_run(environment: dict[str, str]) -> None:
    """A run compares its packages with those that are recorded by a few names."""
    experiment = Scene(Path(environment["DETSLURM_ROOT"])).experiment(1, job=None)

    def named(word: str) -> int:
        argv = [sys.executable, "-c", SOFTWARE, str(experiment.path), word]
        run(argv, environment)  # after it, all is compiled, and recorded
        return sum("AT_EMPTY_PATH" not in line for _, line in trace(argv, environment).calls)

    assert named("noted") - named("not") <= 15


def test_a_report_takes_no_path_call(bench: Bench) -> None:
    """However often a script reports, the run's log was opened once."""
    assert calls_of_a_report(bench) == 0


def test_listing_finished_experiments(environment: dict[str, str]) -> None:
    """`experiment list` looks at a few files, however many experiments there are."""
    store = Path(environment["DETSLURM_ROOT"])
    finished(Store.open(store), 60)
    run(COMMAND, environment)
    assert len(trace(COMMAND, environment).under(store)) <= 10


def test_listing_the_queue(bench: Bench) -> None:
    """`job list` asks squeue once, and nobody else, however many jobs there are."""
    folder = bench.folder()
    environment = bench.environment(folder)
    store = Path(environment["DETSLURM_ROOT"])
    commands = slurm_commands(folder, 2000, store)
    environment["PATH"] = f"{commands}:{environment['PATH']}"
    environment["SLURM_CONF"] = str(folder / "slurm.conf")
    command = [*queueing.COMMAND, "--limit", "2000"]
    assert len(run(command, environment).output.splitlines()) == 2002
    traced = trace(command, environment)
    # Slurm's other commands are not there at all.
    assert queueing.calls_of_squeue(traced, commands) == 1
    assert len(traced.under(store)) <= 10


BROWSING = """
from detslurm.cli.checkpoint import browsing
from detslurm.sdk.client import Client
found = browsing.experiments(Client())
for count in (61, 1, 100):
    assert len(found) == count
    found = found[0].children()
"""


def test_browsing_checkpoints(environment: dict[str, str]) -> None:
    """To open an experiment, a trial and a checkpoint in the browser takes a few looks, however
    many experiments and checkpoints there are, and none at the files of a checkpoint."""
    store = Path(environment["DETSLURM_ROOT"])
    finished(Store.open(store), 60)
    trial = Scene(store).experiment(1, job=None).trial(61)
    run_number = trial.open_run({"hparams": {}, "time": 1.0}).run
    with RunLog.open(trial.records_path(run_number)) as log:
        for step in range(100):
            (store / "checkpoints" / f"c{step:02d}").mkdir(parents=True)
            log.append({"t": "checkpoint", "uuid": f"c{step:02d}", "steps": step,
                        "resources": {"w": 1}, "metadata": {}})  # fmt: skip
    trial.write_end(run_number, {"outcome": "completed", "time": 2.0})
    command = [sys.executable, "-c", BROWSING]
    run(command, environment)
    calls = trace(command, environment).under(store)
    assert len(calls) <= 45
    assert not any("checkpoints/" in call for call in calls)
