"""What the commands about disk space ask of the file system."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.bench import Bench
from benchmarks.calls import trace
from benchmarks.measure import run
from detslurm.store import RunLog, Store
from tests.sdk.scenes import Scene

EXPERIMENTS, CHECKPOINTS = 60, 10


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as session:
        yield session


@pytest.fixture
def environment(bench: Bench) -> dict[str, str]:
    """That of commands on a store of finished experiments, each with some checkpoints."""
    environment = bench.environment(bench.folder())
    scene = Scene(Path(environment["DETSLURM_ROOT"]))
    Store.open(scene.root)
    for _ in range(EXPERIMENTS):
        made = scene.experiment(about={"cluster": "slurm"})
        trial = made.trial(made.created().first_trial)
        trial.open_run({"time": 1.0, "hparams": {}})
        with RunLog.open(trial.records_path(1)) as log:
            for step in range(1, CHECKPOINTS + 1):
                name = str(uuid.uuid4())
                deep = scene.checkpoint(name) / "deep" / "er"
                deep.mkdir(parents=True)
                (deep / "weights").write_text("12345")
                log.append({"t": "checkpoint", "uuid": name, "steps": step,
                            "resources": {"weights": 5, "deep/er/weights": 5},
                            "metadata": {}})  # fmt: skip
        trial.write_end(1, {"outcome": "completed", "time": time.time() - 86400})
    return environment


def test_disk_usage_and_a_dry_run_search_nothing(environment: dict[str, str]) -> None:
    """No checkpoint is entered; a second look at finished experiments takes a few calls, however
    many there are."""
    root = Path(environment["DETSLURM_ROOT"])
    inside = re.compile(re.escape(f"{root}/checkpoints/") + "[0-9a-f]")
    first = trace(["detslurm", "du"], environment)
    assert not [call for call in first.under(root) if inside.search(call)]
    again = trace(["detslurm", "du"], environment).under(root)
    assert len(again) <= 30, "\n".join(again)
    dry = trace(["detslurm", "gc", "--dry-run"], environment).under(root)
    assert not [call for call in dry if inside.search(call)]
    run(["detslurm", "gc"], environment)
    left = len(list((root / "checkpoints").iterdir()))
    assert left == EXPERIMENTS  # the latest of each
    assert len(dry) <= 60 * EXPERIMENTS
    run(["detslurm", "gc"], environment)  # the first has changed them: they are read once more
    again = trace(["detslurm", "gc"], environment).under(root)
    assert len(again) <= 40, "\n".join(again)
    run(["detslurm", "experiment", "label", "add", "7", "kept"], environment)
    changed = trace(["detslurm", "gc"], environment).under(root)
    assert set(re.findall(r"/experiments/(\d+)/", "".join(changed))) == {"7"}
