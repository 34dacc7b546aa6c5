"""A grid of 100 near no-ops (or $DETSLURM_BENCH_GRID of them), run to its end on 4 nodes."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.report import Row
from benchmarks.rows.submission import CONFIG
from detslurm.store import Store, fold_experiment
from tests.cluster import wait_for

TRIALS = int(os.environ.get("DETSLURM_BENCH_GRID", "100"))
PATIENCE = 1800.0
# A near no-op as submitit's users have it: one function a task.
SUBMITIT = """\
import submitit
executor = submitit.AutoExecutor(folder="submitit-grid", cluster="slurm")
executor.update_parameters(slurm_array_parallelism={count}, cpus_per_task=1)
executor.map_array(abs, range({count}))
"""


def measure(bench: Bench) -> Iterator[Row]:
    """Wall time a trial beside submitit's a task; inodes a trial, its directory counted too."""
    user, cluster = bench.user, bench.cluster
    assert user.cwd is not None
    config = user.cwd / "grid.yaml"
    config.write_text(textwrap.dedent(CONFIG))
    (user.cwd / "empty").mkdir()
    user.own(user.cwd)
    peers = max(TRIALS // 2, 1)
    began = time.monotonic()
    user.run(sys.executable, "-c", SUBMITIT.format(count=peers))
    wait_for(lambda: not cluster.queued(user.name), PATIENCE, "submitit's tasks to end")
    submitit = (time.monotonic() - began) / peers

    began = time.monotonic()
    count = f"hyperparameters.x.count={TRIALS}"
    said = user.run("detslurm", "submit", str(config), "empty", "--config", count, "--json").stdout
    wait_for(lambda: not cluster.queued(user.name), PATIENCE, "all trials to end")
    ours = (time.monotonic() - began) / TRIALS

    store = Store(Path(user.env["DETSLURM_ROOT"]))
    experiment = store.experiment(json.loads(said)["data"]["experiment_id"])
    states = fold_experiment(experiment).trial_states
    if states != {"COMPLETED": TRIALS}:
        raise RuntimeError(f"the grid did not end well: {states}")
    inodes = list((experiment.path / "trials").rglob("*"))
    logs = sum(path.suffix == ".log" for path in inodes)
    what = f"grid of {TRIALS:,} no-ops on 4 nodes"
    yield Row(
        what=what, ours=1e3 * ours, unit="ms a trial", anchor=1e3 * submitit,
        peer=f"submitit, {peers} tasks",
    )  # fmt: skip
    yield Row(what=what, ours=ours * TRIALS, unit="s wall")
    yield Row(what=what, ours=(len(inodes) - logs) / TRIALS, unit="inodes a trial", most=6)
