"""A finished experiment's metrics as one HDF5 file of compressed columns.

The originals stay: their logs also hold the facts about checkpoints, and a file that can be
rebuilt must never be the only copy. `compacted` reads what is written here.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from detslurm.store import fs
from detslurm.store.compacted import SCHEMA
from detslurm.store.curve import MetricRow
from detslurm.store.errors import StoreError, explained
from detslurm.store.experiment import ExperimentDir
from detslurm.store.frame import encode_json
from detslurm.store.reading import fold_experiment, logged_metrics
from detslurm.store.trial import TrialDir

_CHUNK: Final = 1 << 16
_EXACT: Final = 1 << 53  # integers up to here survive among floats
_INT64: Final = 1 << 63


def compact(experiment: ExperimentDir) -> Path:
    """Write the metrics of a finished experiment into its `metrics.h5`; returns the file."""
    view = fold_experiment(experiment)
    if not view.finished or view.state == "DELETED":
        raise StoreError(f"experiment {experiment.id} is {view.state}: only finished ones compact")
    path = experiment.metrics_path
    stage = fs.temporary_name(str(path))
    try:
        with h5py.File(stage, "w-", locking=False) as file:
            _write(file, [experiment.trial(row.id) for row in view.trials])
        fs.sync_file(stage)
        fs.share(stage)
        Path(stage).rename(path)
    except OSError as error:
        raise explained(error, str(path)) from error
    finally:
        fs.discard(stage)
    return path


def _write(file: Any, trials: Sequence[TrialDir]) -> None:
    groups: dict[str, _Group] = {}
    runs = array("q")
    for place, trial in enumerate(trials):
        known = trial.runs()  # once: what begins meanwhile is not counted as read
        rows = logged_metrics(trial, known=known)
        runs.append(len(known))
        for row in rows:
            group = groups.get(row.group)
            if group is None:
                group = groups[row.group] = _Group(len(trials))
            group.add(place, row)
    file.attrs["schema"] = SCHEMA
    _dataset(file, "trials", np.array([trial.id for trial in trials], dtype=np.int64))
    _dataset(file, "runs", np.array(runs, dtype=np.int64))
    for number, (name, group) in enumerate(groups.items()):
        place = file.create_group(f"groups/{number}")
        place.attrs["name"] = name
        group.write(place)


class _Group:
    """The rows of one metric group, trial after trial, as columns in memory."""

    def __init__(self, trials: int) -> None:
        self.counts = np.zeros(trials, dtype=np.int64)
        self.steps, self.runs, self.times = array("q"), array("q"), array("d")
        self.columns: dict[tuple[str, ...], _Column] = {}

    def add(self, trial: int, row: MetricRow) -> None:
        place = len(self.steps)
        self.counts[trial] += 1
        self.steps.append(row.steps)
        self.runs.append(row.run)
        self.times.append(math.nan if row.time is None else row.time)
        for path, value in _leaves(row.metrics, ("metrics",)):
            self._column(path).add(place, value)
        if row.batch is not None:
            self._column(("batch",)).add(place, row.batch)

    def _column(self, path: tuple[str, ...]) -> _Column:
        column = self.columns.get(path)
        if column is None:
            column = self.columns[path] = _Column()
        return column

    def write(self, place: Any) -> None:
        _dataset(place, "counts", self.counts)
        _dataset(place, "steps", np.array(self.steps, dtype=np.int64))
        _dataset(place, "runs", np.array(self.runs, dtype=np.int64))
        _dataset(place, "times", np.array(self.times, dtype=np.float64))
        for number, (path, column) in enumerate(self.columns.items()):
            folder = place.create_group(f"columns/{number}")
            folder.attrs["path"] = encode_json(path).decode()
            column.write(folder, len(self.steps))


def _leaves(value: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, item in value.items():
        if isinstance(item, dict) and item:
            yield from _leaves(item, (*path, name))
        else:
            yield (*path, name), item


class _Column:
    """One metric's values and, where some rows lack it, the rows that have it."""

    def __init__(self) -> None:
        self.places = array("q")
        self.values: list[Any] = []

    def add(self, place: int, value: Any) -> None:
        self.places.append(place)
        self.values.append(value)

    def write(self, folder: Any, rows: int) -> None:
        if len(self.places) < rows:
            _dataset(folder, "places", np.array(self.places, dtype=np.int64))
        kind = _kind_of(self.values)
        folder.attrs["kind"] = kind
        if kind != "json":
            dtype = np.int64 if kind == "int" else np.float64
            _dataset(folder, "values", np.array(self.values, dtype=dtype))
            return
        texts = [encode_json(value) for value in self.values]
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        _dataset(folder, "values", np.frombuffer(b"".join(texts), dtype=np.uint8))
        _dataset(folder, "ends", ends)


def _kind_of(values: Iterable[Any]) -> str:
    kinds = set()
    largest = 0
    for value in values:
        kinds.add(type(value))
        if type(value) is int:
            largest = max(largest, abs(value))
    if kinds == {int}:
        return "int" if largest < _INT64 else "json"
    return "float" if kinds <= {int, float} and largest <= _EXACT else "json"


def _dataset(folder: Any, name: str, values: Any) -> None:
    if len(values) == 0:
        folder.create_dataset(name, data=values)
        return
    chunk = min(len(values), _CHUNK)
    folder.create_dataset(
        name, data=values, chunks=(chunk,), compression="gzip", compression_opts=1, shuffle=True
    )
