"""Finding checkpoints takes a few file operations, however many there are, and no walk."""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.bench import Bench
from benchmarks.calls import available, trace
from benchmarks.measure import run
from detslurm.store import RunLog, Store
from detslurm.store.records import Created

pytestmark = pytest.mark.skipif(not available(), reason="strace is not installed")

EXPERIMENTS, EACH = 60, 10
LISTED = re.compile(r"O_DIRECTORY.*= \d+$")


def fill(root: Path, experiments: int, each: int) -> list[str]:
    """Experiments that are over, each with checkpoints of one file; their ids."""
    store, made = Store.open(root), list[str]()
    section = {"type": "shared_fs", "host_path": str(root), "storage_path": "checkpoints"}
    for number in range(experiments):
        experiment = store.create_experiment(
            Created(name=f"e{number}", trials=1, metric="loss"),
            {"name": f"e{number}", "entrypoint": "true", "checkpoint_storage": section},
        )
        trial = experiment.trial(experiment.created().first_trial)
        trial.open_run({"time": 1.0})
        with RunLog.open(trial.records_path(1)) as log:
            for step in range(1, each + 1):
                made.append(str(uuid.uuid4()))
                folder = root / "checkpoints" / made[-1]
                folder.mkdir(parents=True)
                (folder / "weights").write_text("12345")
                metrics = {"loss": 1 / step}
                log.append(
                    {"t": "metrics", "group": "validation", "steps": step, "metrics": metrics}
                )
                log.append({"t": "checkpoint", "uuid": made[-1], "steps": step, "time": 1.0 * step,
                            "resources": {"weights": 5}, "metadata": {}})  # fmt: skip
        trial.write_end(1, {"outcome": "completed", "time": 2.0})
    return made


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench() as session:
        yield session


@pytest.fixture(scope="module")
def filled(bench: Bench) -> tuple[dict[str, str], list[str]]:
    """A store with many checkpoints that were listed before, and their ids."""
    environment = bench.environment(bench.folder())
    made = fill(Path(environment["DETSLURM_ROOT"]), EXPERIMENTS, EACH)
    run(["detslurm", "checkpoint", "list"], environment)
    return environment, made


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (["list"], 20),
        (["list", "--sort-by", "loss", "--limit", "10"], 30),
        (["describe", "WHOLE"], 30),
        (["describe", "SHORT"], 30),
        (["tree", "WHOLE"], 30),
        (["verify", "WHOLE"], 40),
    ],
)
def test_commands_on_checkpoints(
    filled: tuple[dict[str, str], list[str]], words: list[str], most: int
) -> None:
    """So many path calls in the store at most, and no directory listed but that of all
    checkpoints, or that of the one which is checked."""
    environment, made = filled
    root = Path(environment["DETSLURM_ROOT"])
    names = {"WHOLE": made[7], "SHORT": made[7][:13]}
    calls = trace(
        ["detslurm", "checkpoint", *(names.get(word, word) for word in words)], environment
    ).under(root)
    assert len(calls) <= most, "\n".join(calls)
    below = [line for line in calls if LISTED.search(line) and "/experiments/" not in line]
    assert len({*re.findall(r'"([^"]*)"', "".join(below))}) <= 3, below


BROWSED = """
from detslurm.cli.checkpoint import browsing
from detslurm.sdk import Client
nodes = browsing.experiments(Client())
while nodes:
    assert all(node.label for node in nodes) and nodes[0].details()
    nodes = nodes[0].children() if nodes[0].children else []
"""


def test_ten_times_as_many_cost_the_same(bench: Bench) -> None:
    """The browser opens a line of each kind, and garbage is collected again: as many path calls
    in a small store as in a large one."""
    commands = (["detslurm", "gc"], [sys.executable, "-c", BROWSED])
    counts = []
    for experiments in (4, 40):
        environment = bench.environment(bench.folder())
        root = Path(environment["DETSLURM_ROOT"])
        fill(root, experiments, EACH)
        for words in (["gc"], ["gc"], ["experiment", "list"]):
            run(["detslurm", *words], environment)
        counts.append([len(trace(words, environment).under(root)) for words in commands])
    assert counts[0] == counts[1] and max(counts[0]) <= 40, counts


def test_a_changed_experiment_is_folded_alone(filled: tuple[dict[str, str], list[str]]) -> None:
    """A fact of one finished experiment costs the next list that experiment's files."""
    environment, made = filled
    run(["detslurm", "checkpoint", "metadata", made[0], "--set", "a=1"], environment)
    root = Path(environment["DETSLURM_ROOT"])
    calls = trace(["detslurm", "checkpoint", "list"], environment).under(root)
    touched = set(re.findall(r"/experiments/(\d+)/", "".join(calls)))
    assert touched == {"1"}
    assert len(trace(["detslurm", "checkpoint", "list"], environment).under(root)) <= 20
