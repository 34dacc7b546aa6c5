"""A finished experiment's metrics as one HDF5 file of compressed columns.

The originals stay: their logs also hold the facts about checkpoints, and a file that can be
rebuilt must never be the only copy. `compacted` reads that file; docs/store.md
describes the layout for readers who have h5py alone.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from detslurm.store import fs
from detslurm.store.compacted import FORMAT, VERSION
from detslurm.store.curve import MetricRow, as_float, is_number
from detslurm.store.errors import StoreError, explained
from detslurm.store.experiment import ExperimentDir
from detslurm.store.frame import encode_json
from detslurm.store.overviews import means_rows, points_of
from detslurm.store.reading import fold_experiment, fold_facts, logged_metrics
from detslurm.store.saved_views import save_views
from detslurm.store.trial import TrialDir

_CHUNK: Final = 1 << 16
_FEW: Final = 128  # what describes chunks would take more than so many numbers
_EXACT: Final = 1 << 53  # integers up to here survive among floats
_INT64: Final = 1 << 63


def compact(experiment: ExperimentDir) -> Path:
    """Write the metrics of a finished experiment into its `metrics.h5`; returns the file."""
    view = fold_experiment(experiment)
    if not view.finished or view.state == "DELETED":
        raise _refusal(experiment, view.state)
    path = experiment.metrics_path
    # In memory, which holds all of it as columns anyway: where a disk is full, HDF5 has errors of
    # several kinds when it closes a file, or ends the process.
    content = BytesIO()
    try:
        with h5py.File(content, "w", libver="v110") as file:
            file.attrs.update(format=FORMAT, version=VERSION, experiment=experiment.id)
            _write(file, [experiment.trial(row.id) for row in view.trials])
        fs.replace_file(path, content.getvalue())
        save_views(experiment, view)
        # A command that waits for the end may delete it at once, before it has seen later facts.
        if fold_facts(experiment).desired.deleted:
            for made in (path, experiment.path / "trials.json"):
                made.unlink(missing_ok=True)
            raise _refusal(experiment, "DELETED")
    except OSError as error:
        raise explained(error, str(path)) from error
    return path


def _refusal(experiment: ExperimentDir, state: str) -> StoreError:
    return StoreError(f"experiment {experiment.id} is {state}: only finished ones compact")


def _write(file: Any, trials: Sequence[TrialDir]) -> None:
    groups: dict[str, _Group] = defaultdict(lambda: _Group(len(trials)))
    runs = array("q")
    for place, trial in enumerate(trials):
        known = trial.runs()  # once: what begins meanwhile is not counted as read
        rows = logged_metrics(trial, known=known)
        runs.append(len(known))
        for row in rows:
            groups[row.group].add(place, row)
    _dataset(file, "trials/id", np.array([trial.id for trial in trials], dtype=np.int64))
    _dataset(file, "trials/runs", np.array(runs, dtype=np.int64))
    folder = file.create_group("groups", track_order=True)
    for name, group in groups.items():
        place = folder.create_group(_link(name, folder))
        place.attrs["name"] = _text(name)
        group.write(place, [trial.id for trial in trials])


def _text(name: str) -> str:
    return name.replace("\0", "%00")  # where a text in HDF5 ends


def _link(name: str, taken: Collection[str]) -> str:
    """The name as HDF5 can have it: no slashes, not empty, not dots alone, given once."""
    text = re.sub("[%/\0]", lambda found: f"%{ord(found[0]):02X}", name)
    text = text if text.strip(".") else f"%{text}"
    again = 2
    link = text
    while link in taken:
        link, again = f"{text}%{again}", again + 1
    return link


class _Group:
    """The rows of one metric group, trial after trial, as columns in memory."""

    def __init__(self, trials: int) -> None:
        self.counts = np.zeros(trials, dtype=np.int64)
        self.steps, self.runs, self.times = array("q"), array("q"), array("d")
        self.ranks = array("q")
        self.columns: dict[tuple[str, ...], _Column] = defaultdict(_Column)
        self.batches = _Column()

    def add(self, trial: int, row: MetricRow) -> None:
        place = len(self.steps)
        self.counts[trial] += 1
        self.steps.append(row.steps)
        self.runs.append(row.run)
        self.ranks.append(row.rank)
        self.times.append(math.nan if row.time is None else row.time)
        for path, value in _leaves(row.metrics, ()):
            self.columns[path].add(place, value)
        if row.batch is not None:
            self.batches.add(place, row.batch)

    def write(self, place: Any, trials: Sequence[int]) -> None:
        _dataset(place, "offsets", np.concatenate(([0], np.cumsum(self.counts))))
        _dataset(place, "trial", np.repeat(np.array(trials, dtype=np.int64), self.counts))
        _dataset(place, "run", np.array(self.runs, dtype=np.int64))
        if any(self.ranks):
            _dataset(place, "rank", np.array(self.ranks, dtype=np.int64))
        _dataset(place, "steps", np.array(self.steps, dtype=np.int64))
        _dataset(place, "time", np.array(self.times, dtype=np.float64))
        metrics = place.create_group("metrics", track_order=True)
        for path, column in self.columns.items():
            name = ".".join(path)
            dataset = column.write(metrics, _link(name, metrics), len(self.steps))
            dataset.attrs["name"] = _text(name)
            dataset.attrs["path"] = encode_json(path).decode()
        self._write_overview(place.create_group("overview", track_order=True), trials)
        if self.batches.values:
            self.batches.write(place, "batch", len(self.steps))

    def _write_overview(self, folder: Any, trials: Sequence[int]) -> None:
        offsets = np.concatenate(([0], np.cumsum(self.counts)))
        steps, times = np.array(self.steps), np.array(self.times)
        for path, column in self.columns.items():
            places, values = column.numbers()
            bounds = np.searchsorted(places, offsets).tolist()
            if not len(places):
                continue
            curves = [
                (trial, steps[of := places[first:last]], times[of], values[first:last])
                for trial, first, last in zip(trials, bounds, bounds[1:], strict=False)
            ]
            name = ".".join(path)
            metric = folder.create_group(_link(name, folder))
            metric.attrs["name"] = _text(name)
            _dataset(metric, "points", np.concatenate([points_of(*one) for one in curves]))
            _dataset(metric, "means", np.concatenate([means_rows(*one) for one in curves]))
            _dataset(metric, "counts", np.diff(bounds))


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

    def numbers(self) -> tuple[Any, Any]:
        """The rows with a number, and the numbers."""
        places, values = np.array(self.places, dtype=np.int64), self.values
        if not {*map(type, values)} <= {int, float}:
            kept = [n for n, value in enumerate(values) if is_number(value)]
            places, values = places[kept], [values[n] for n in kept]
        return places, np.fromiter(map(as_float, values), np.float64, len(values))

    def write(self, folder: Any, link: str, rows: int) -> Any:
        """As a dataset of all rows: NaN or an empty text where a row lacks the metric."""
        kind = _kind_of(self.values, complete=len(self.places) == rows)
        places = np.array(self.places, dtype=np.int64)
        if kind == "json":
            texts = np.array([encode_json(value).decode() for value in self.values], dtype=object)
            dataset = _spread(folder, link, rows, places, texts, "", h5py.string_dtype())
        elif len(places) == rows:
            dtype = np.int64 if kind == "int" else np.float64
            dataset = _dataset(folder, link, np.array(self.values, dtype=dtype))
        else:
            values = np.array(self.values, dtype=np.float64)
            dataset = _spread(folder, link, rows, places, values, math.nan, np.float64)
            # A reported NaN is no missing value.
            ones = np.ones(len(places), dtype=bool)
            _spread(folder.parent, f"present/{link}", rows, places, ones, False, bool)
        dataset.attrs["kind"] = kind
        return dataset


def _kind_of(values: Iterable[Any], *, complete: bool) -> str:
    kinds = set()
    largest = 0
    for value in values:
        kinds.add(type(value))
        if type(value) is int:
            largest = max(largest, abs(value))
    if kinds == {int}:
        return "int" if largest < (_INT64 if complete else _EXACT) else "json"
    return "float" if kinds <= {int, float} and largest <= _EXACT else "json"


def _dataset(folder: Any, name: str, values: Any) -> Any:
    return folder.create_dataset(name, data=values, **_storage(len(values)))


def _spread(
    folder: Any, name: str, rows: int, places: Any, values: Any, missing: Any, dtype: Any
) -> Any:
    """Values of some rows as a dataset of all: chunks that hold none of them take no space."""
    options = _storage(rows)
    dataset = folder.create_dataset(name, shape=(rows,), dtype=dtype, fillvalue=missing, **options)
    for chunk in np.unique(places // _CHUNK).tolist():
        first, last = chunk * _CHUNK, min((chunk + 1) * _CHUNK, rows)
        low, high = np.searchsorted(places, (first, last))
        part = np.full(last - first, missing, dtype=values.dtype)
        part[places[low:high] - first] = values[low:high]
        dataset[first:last] = part
    return dataset


def _storage(rows: int) -> dict[str, Any]:
    if rows <= _FEW:
        return {}
    chunks = (min(rows, _CHUNK),)
    return {"chunks": chunks, "compression": "gzip", "compression_opts": 1, "shuffle": True}
