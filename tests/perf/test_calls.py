"""Path calls are counted by strace: the same on every machine, unlike milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.bench import Bench
from benchmarks.calls import available, trace
from benchmarks.experiments import finished
from benchmarks.measure import run
from benchmarks.rows.listing import COMMAND
from benchmarks.rows.reporting import calls_of_a_report
from benchmarks.rows.startup import Startup
from detslurm.store import Store

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
    """Runner and agent reach the user's first instruction with at most 1,200 calls each."""
    startup = Startup(bench)
    startup.whole_seconds()
    assert startup.runner_calls() <= 1200
    assert startup.agent_calls() <= 1200


def test_a_report_takes_no_path_call(bench: Bench) -> None:
    """However often a script reports, the run's log was opened once."""
    assert calls_of_a_report(bench) == 0


def test_listing_finished_experiments(environment: dict[str, str]) -> None:
    """`experiment list` looks at a few files, however many experiments there are."""
    store = Path(environment["DETSLURM_ROOT"])
    finished(Store.open(store), 60)
    run(COMMAND, environment)
    assert len(trace(COMMAND, environment).under(store)) <= 10
