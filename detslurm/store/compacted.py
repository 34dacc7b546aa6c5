"""Reading a trial's metrics from the experiment's compacted file (see `compaction`).

Needs h5py, which is slow to import: other modules import this one where they use it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

import h5py
import numpy as np

from detslurm.store.curve import MetricRow
from detslurm.store.frame import decode_json
from detslurm.store.trial import TrialDir

SCHEMA: Final = 1


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
