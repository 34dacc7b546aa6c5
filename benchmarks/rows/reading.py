"""A million reported steps, read for a plot."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.measure import interleaved, timed
from benchmarks.report import Row
from detslurm.store import (
    RunLog,
    Store,
    compact,
    metric_columns,
    trial_metrics,
)
from detslurm.store.records import Created

STEPS = 1_000_000


def measure(bench: Bench) -> Iterator[Row]:
    """One trial's clean curve from the log, then compacted; beside json.loads of plain JSONL."""
    folder = bench.folder()
    experiment = Store.open(folder / "store").create_experiment(
        Created(trials=1, metric="loss"), {}
    )
    trial = experiment.trial(1)
    trial.open_run({"trial": 1, "experiment": experiment.id, "time": time.time()})
    with RunLog.open(trial.records_path(1)) as log, (folder / "plain").open("w") as plain:
        for step in range(STEPS):
            metrics = {"loss": 1.0 / (1 + step)}
            log.append({"t": "metrics", "group": "training", "steps": step, "metrics": metrics})
            plain.write(json.dumps({"step": step, **metrics}) + "\n")
    trial.write_end(1, {"outcome": "completed", "reason": "bench", "time": time.time()})

    def peer() -> None:
        with (folder / "plain").open() as lines:
            for line in lines:
                json.loads(line)

    def columns() -> float:
        return timed(lambda: metric_columns(trial, "training"))

    def rows() -> float:
        return timed(lambda: trial_metrics(trial, "training"))

    rows_of_log, columns_of_log, other = interleaved(rows, columns, lambda: timed(peer), rounds=7)
    compact(experiment)
    (compacted,) = interleaved(columns, rounds=3)
    for where, ours, most in (
        ("compacted", compacted, 0.05),
        ("rows of the log", rows_of_log, 0.5),
        ("columns of the log", columns_of_log, 0.5),
    ):
        yield Row(
            what=f"read 1,000,000 steps, {where}", ours=ours, unit="s",
            anchor=other, peer="json.loads a line", most_ratio=most,
        )  # fmt: skip
