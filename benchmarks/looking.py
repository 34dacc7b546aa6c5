"""Finished experiments with very many steps, made in seconds."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from detslurm.store import ExperimentDir, RunLog, Store, compact
from detslurm.store.overviews import MOST
from detslurm.store.records import Created
from tests.sdk.scenes import resolved

CHUNK = 1 << 16
"""The rows of one compressed chunk of a compacted file."""


def trained(store: Store, trials: int, steps: int) -> ExperimentDir:
    """A finished and compacted experiment that reported a loss at each step.

    Its first trial really did. The metrics of the others are copies of that one's in the compacted
    file, and their logs are short: whoever reads the metrics finds `steps` of each trial.
    """
    if trials > 1 and steps % CHUNK:
        raise ValueError(f"{steps} steps are no whole number of chunks of {CHUNK}")
    experiment, numbers = _submitted(store, "looked-at", trials)
    for number in numbers:
        _run(experiment, number, steps if number == numbers[0] else 1)
    compact(experiment)
    if trials > 1:
        _spread(experiment.metrics_path, trials, steps)
    return experiment


def _submitted(store: Store, name: str, trials: int) -> tuple[ExperimentDir, range]:
    """An experiment whose job is known, and the ids of its trials."""
    made = store.create_experiment(Created(name=name, trials=trials, metric="loss"), resolved())
    job = {"cluster": "slurm", "job_id": "1", "first_index": 0}
    made.append({"type": "submitted", "jobs": [job]})
    first = made.created().first_trial
    return made, range(first, first + trials)


def _run(experiment: ExperimentDir, number: int, steps: int) -> None:
    trial, stream = experiment.trial(number), random.Random(number)
    began = time.time()
    hparams = {"lr": stream.random(), "layers": stream.randint(1, 8)}
    trial.open_run({"trial": number, "hparams": hparams, "time": began, "host": "n1"})
    with RunLog.open(trial.records_path(1)) as log:
        for step in range(1, steps + 1):
            loss = 100 / (100 + step) + 0.1 * stream.random()
            log.append({"t": "metrics", "group": "training", "steps": step,
                        "metrics": {"loss": loss}, "time": began + step / 100})  # fmt: skip
        log.append({"t": "metrics", "group": "validation", "steps": steps,
                    "metrics": {"loss": stream.random()}})  # fmt: skip
    trial.write_end(1, {"outcome": "completed", "time": began + steps / 100})


def _spread(path: Path, trials: int, steps: int) -> None:
    """Give every trial of a compacted file the training metrics of its first one."""
    with h5py.File(path, "r+") as file:
        ids, group = file["trials/id"][:], file["groups/training"]
        for name in ("run", "steps", "time", "metrics/loss"):
            _repeat(group, name, trials, steps // CHUNK)
        _replace(group, "trial", np.repeat(ids, steps))
        _replace(group, "offsets", np.arange(trials + 1) * steps)
        overview = group["overview/loss"]
        points = overview["points"][: -trials + 1]  # the others have one each
        for name, rows in (("points", points), ("means", overview["means"][:])):
            repeated = np.tile(rows, trials)
            repeated["trial"] = np.repeat(ids, len(rows))
            _replace(overview, name, repeated)
        _replace(overview, "counts", np.full(trials, steps))


def _repeat(group: Any, name: str, trials: int, chunks: int) -> None:
    """A column of one trial for all of them: its compressed chunks again and again."""
    old = group[name]
    read = [old.id.read_direct_chunk((n * CHUNK,)) for n in range(chunks)]
    attributes, dtype = dict(old.attrs), old.dtype
    del group[name]
    rows = trials * chunks * CHUNK
    new = group.create_dataset(name, shape=(rows,), dtype=dtype, chunks=(CHUNK,),
                               compression="gzip", compression_opts=1, shuffle=True)  # fmt: skip
    new.attrs.update(attributes)
    for place in range(trials * chunks):
        mask, data = read[place % chunks]
        new.id.write_direct_chunk((place * CHUNK,), data, mask)


def _replace(group: Any, name: str, values: Any) -> None:
    del group[name]
    group.create_dataset(name, data=values, chunks=True, compression="gzip", compression_opts=1)


def searched(store: Store, trials: int, points: int, metrics: Sequence[str]) -> ExperimentDir:
    """A finished and compacted search whose trials each reported `points` points of these metrics.

    The logs are short: whoever reads the thinned curves of the compacted file finds all points.

    Args:
        store: Where to make it.
        trials: How many.
        points: Of each metric; at most as many as a thinned curve has.
        metrics: Their names as "group/metric"; "validation/loss" is the searcher's.
    """
    if points > MOST:
        raise ValueError(f"curves of {points} points would be thinned to {MOST}")
    made, numbers = _submitted(store, "searched", trials)
    for number in numbers:
        _search_run(made, number, metrics)
    compact(made)
    noise = np.random.default_rng(0)
    with h5py.File(made.metrics_path, "r+") as file:
        ids = file["trials/id"][:]
        for name in metrics:
            group, _, metric = name.partition("/")
            overview = file[f"groups/{group}/overview/{metric}"]
            rows = np.empty(trials * points, dtype=overview["points"].dtype)
            rows["trial"] = np.repeat(ids, points)
            rows["steps"] = np.tile(100 * np.arange(1, points + 1), trials)
            rows["time"] = 1.79e9 + rows["steps"] / 7 + noise.random(len(rows))
            rows["value"] = 100 / (100 + rows["steps"] / 20) + 0.1 * noise.random(len(rows))
            _replace(overview, "points", rows)
            _replace(overview, "counts", np.full(trials, points))
    return made


def _search_run(experiment: ExperimentDir, number: int, metrics: Sequence[str]) -> None:
    trial, stream, began = experiment.trial(number), random.Random(number), time.time()
    hparams = {"lr": stream.random(), "layers": stream.randint(1, 8), "dropout": stream.random()}
    trial.open_run({"trial": number, "hparams": hparams, "time": began, "host": f"n{number % 16}"})
    with RunLog.open(trial.records_path(1)) as log:
        for name in metrics:
            group, _, metric = name.partition("/")
            log.append({"t": "metrics", "group": group, "steps": 100,
                        "metrics": {metric: stream.random()}, "time": began})  # fmt: skip
    trial.write_end(1, {"outcome": "completed", "time": began + 600 * stream.random()})
