"""A finished experiment's metrics as one HDF5 file of compressed columns.

The originals stay: their logs also hold the facts about checkpoints, and a file that can be
rebuilt must never be the only copy. The only module that needs h5py; others import it late.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from detslurm.store import fs
from detslurm.store.curve import MetricRow
from detslurm.store.errors import StoreError, explained
from detslurm.store.experiment import ExperimentDir
from detslurm.store.frame import decode_json, encode_json
from detslurm.store.reading import fold_experiment, logged_metrics
from detslurm.store.trial import TrialDir

SCHEMA: Final = 1
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


class Compacted:
    """A compacted file, opened to read one trial of it."""

    def __init__(self, file: Any, place: int) -> None:
        self._file = file
        self._place = place

    @classmethod
    @contextmanager
    def of(cls, trial: TrialDir) -> Iterator[Compacted | None]:
        """The trial's compacted metrics; None where there are none, or older ones than its runs."""
        try:
            file = h5py.File(trial.metrics_path, "r", locking=False)
        except OSError:
            yield None
            return
        with file:
            place = _place_of(file, trial)
            yield None if place is None else cls(file, place)

    def rows(self, group: str | None) -> list[MetricRow]:
        """The trial's rows of one group or of all, by step."""
        found: list[MetricRow] = []
        for name, folder in self._groups():
            if group in (None, name):
                found += self._rows_of(name, folder)
        return sorted(found, key=lambda row: row.steps)

    def numbers(
        self, group: str, names: Sequence[str] | None
    ) -> tuple[Sequence[int], dict[str, Sequence[float]]]:
        """Steps and numeric columns of one group, as arrays."""
        for name, folder in self._groups():
            if name == group:
                return self._numbers_of(folder, names)
        return [], {}

    def _groups(self) -> Iterator[tuple[str, Any]]:
        for folder in _members(self._file, "groups"):
            yield str(folder.attrs["name"]), folder

    def _bounds(self, folder: Any) -> tuple[int, int]:
        counts = folder["counts"][: self._place + 1]
        last = int(counts.sum())
        return last - int(counts[-1]), last

    def _numbers_of(
        self, folder: Any, names: Sequence[str] | None
    ) -> tuple[Sequence[int], dict[str, Sequence[float]]]:
        first, last = self._bounds(folder)
        metrics: dict[str, Sequence[float]] = {}
        for path, column in _columns(folder):
            name = ".".join(path[1:])
            if path[0] == "metrics" and (names is None or name in names):
                values = _numeric(column, first, last)
                if values is not None:
                    metrics[name] = values
        return folder["steps"][first:last], metrics

    def _rows_of(self, name: str, folder: Any) -> list[MetricRow]:
        first, last = self._bounds(folder)
        steps = folder["steps"][first:last].tolist()
        runs = folder["runs"][first:last].tolist()
        times = folder["times"][first:last].tolist()
        leaves: list[dict[str, Any]] = [{} for _ in steps]
        for path, column in _columns(folder):
            for place, value in _values(column, first, last):
                _put(leaves[place], path, value)
        return [
            MetricRow(name, step, leaf.get("metrics", {}), run, _time(time), leaf.get("batch"))
            for step, run, time, leaf in zip(steps, runs, times, leaves, strict=True)
        ]


def _place_of(file: Any, trial: TrialDir) -> int | None:
    if file.attrs["schema"] != SCHEMA:
        return None
    found = np.flatnonzero(file["trials"][:] == trial.id)
    if not len(found):
        return None
    place = int(found[0])
    later = trial.start(int(file["runs"][place]) + 1, fresh=True)
    return place if later is None else None


def _members(folder: Any, name: str) -> Iterator[Any]:
    if name in folder:
        for number in range(len(folder[name])):
            yield folder[name][str(number)]


def _columns(folder: Any) -> Iterator[tuple[list[str], Any]]:
    for column in _members(folder, "columns"):
        yield decode_json(column.attrs["path"].encode()), column


def _slice(column: Any, first: int, last: int) -> tuple[Any, int, int]:
    """Positions (from `first`) of the rows that have the metric, and where their values are."""
    if "places" not in column:
        return None, first, last
    places = column["places"][:]
    low, high = np.searchsorted(places, (first, last))
    return places[low:high] - first, int(low), int(high)


def _values(column: Any, first: int, last: int) -> Iterator[tuple[int, Any]]:
    places, low, high = _slice(column, first, last)
    positions = range(last - first) if places is None else places.tolist()
    return zip(positions, _decoded(column, low, high), strict=True)


def _decoded(column: Any, low: int, high: int) -> list[Any]:
    if column.attrs["kind"] != "json":
        plain: list[Any] = column["values"][low:high].tolist()
        return plain
    ends = column["ends"][:high].tolist()
    start = ends[low - 1] if low else 0
    blob = column["values"][start : ends[-1] if ends else 0].tobytes()
    cuts = [start, *ends[low:]]
    return [decode_json(blob[one - start : other - start]) for one, other in pairwise(cuts)]


def _numeric(column: Any, first: int, last: int) -> Any:
    """The column as floats, NaN where a row lacks it; None where no row has a number."""
    places, low, high = _slice(column, first, last)
    if low == high:
        return None
    if column.attrs["kind"] == "json":
        decoded = _decoded(column, low, high)
        numbers = [float(v) if type(v) in (int, float) else math.nan for v in decoded]
        if not any(type(v) in (int, float) for v in decoded):
            return None
        values = np.array(numbers)
    else:
        values = column["values"][low:high].astype(np.float64, copy=False)
    if places is None:
        return values
    spread = np.full(last - first, math.nan)
    spread[places] = values
    return spread


def _put(leaf: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        leaf = leaf.setdefault(name, {})
    leaf[path[-1]] = value


def _time(value: float) -> float | None:
    return None if math.isnan(value) else value
