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

    from_log, other = interleaved(
        lambda: timed(lambda: trial_metrics(trial, "training")), lambda: timed(peer), rounds=3
    )
    compact(experiment)
    (from_columns,) = interleaved(
        lambda: timed(lambda: metric_columns(trial, "training")), rounds=3
    )
    yield Row(
        what="read 1,000,000 steps, compacted", ours=from_columns, unit="s",
        anchor=other, peer="json.loads a line", most=0.3, most_ratio=0.05,
    )  # fmt: skip
    yield Row(
        what="read 1,000,000 steps, from the log", ours=from_log, unit="s",
        anchor=other, peer="json.loads a line", most_ratio=0.5,
    )  # fmt: skip
