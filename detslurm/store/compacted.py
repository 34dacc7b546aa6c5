"""Reading a trial's metrics from the experiment's compacted file (see `compaction`).

Needs h5py, which is slow to import: other modules import this one where they use it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import h5py
import numpy as np

from detslurm.store.curve import MetricRow, as_float
from detslurm.store.frame import decode_json
from detslurm.store.trial import TrialDir

FORMAT: Final = "detslurm metrics"
VERSION: Final = 4


class Compacted:
    """A compacted file, opened to read one trial of it."""

    def __init__(self, file: Any, place: int) -> None:
        self._file = file
        self._place = place

    @classmethod
    @contextmanager
    def of(cls, trial: TrialDir) -> Iterator[Compacted | None]:
        """The trial's compacted metrics; None where there are none, or older ones than its runs."""
        file = open_compacted(trial)
        if file is None:
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
        for folder in self._file["groups"].values():
            yield str(folder.attrs["name"]), folder

    def _bounds(self, folder: Any) -> tuple[int, int]:
        first, last = folder["offsets"][self._place : self._place + 2].tolist()
        return first, last

    def _numbers_of(
        self, folder: Any, names: Sequence[str] | None
    ) -> tuple[Sequence[int], dict[str, Sequence[float]]]:
        first, last = self._bounds(folder)
        metrics: dict[str, Sequence[float]] = {}
        for column in folder["metrics"].values():
            name = ".".join(_path(column))
            if names is None or name in names:
                values = _numeric(column, first, last)
                if values is not None:
                    metrics[name] = values
        return folder["steps"][first:last], metrics

    def _rows_of(self, name: str, folder: Any) -> list[MetricRow]:
        first, last = self._bounds(folder)
        steps, runs, times = (folder[n][first:last].tolist() for n in ("steps", "run", "time"))
        ranks = folder["rank"][first:last].tolist() if "rank" in folder else [0] * len(steps)
        metrics: list[dict[str, Any]] = [{} for _ in steps]
        for column in folder["metrics"].values():
            path = _path(column)
            for place, value in _values(column, first, last):
                _put(metrics[place], path, value)
        batches: dict[int, Any] = {}
        if "batch" in folder:
            batches.update(_values(folder["batch"], first, last))
        when, batched = map(_time, times), map(batches.get, range(len(steps)))
        return [
            MetricRow(name, *fields)
            for fields in zip(steps, metrics, runs, when, batched, ranks, strict=True)
        ]


def open_compacted(trial: TrialDir) -> Any:
    """The compacted file of a trial's experiment; None where there is none of this version."""
    try:
        if not trial.metrics_path.is_file():  # opening a pipe would wait for a writer
            return None
        file = h5py.File(trial.metrics_path, "r", locking=False)
    except OSError:
        return None
    if file.attrs.get("format") == FORMAT and file.attrs["version"] == VERSION:
        return file
    file.close()
    return None


def is_current(file: Any, trial: TrialDir, place: int) -> bool:
    """Whether all runs of the trial number `place` of a compacted file were read for it."""
    return trial.start(int(file["trials/runs"][place]) + 1, fresh=True) is None


def _place_of(file: Any, trial: TrialDir) -> int | None:
    found = np.flatnonzero(file["trials/id"][:] == trial.id)
    if not len(found):
        return None
    place = int(found[0])
    return place if is_current(file, trial, place) else None


def _path(column: Any) -> list[str]:
    path: list[str] = decode_json(column.attrs["path"].encode())
    return path


def _values(column: Any, first: int, last: int) -> Iterator[tuple[int, Any]]:
    """The values that were reported, with the places of their rows past `first`."""
    values, kind = column[first:last], column.attrs["kind"]
    if kind == "json":
        yield from ((n, decode_json(text)) for n, text in enumerate(values) if text)
        return
    places = np.flatnonzero(_present(column, first, last)).tolist()
    numbers = values[places].astype(np.int64 if kind == "int" else np.float64).tolist()
    yield from zip(places, numbers, strict=True)


def _present(column: Any, first: int, last: int) -> Any:
    link = column.name.rpartition("/")[2]
    mask = column.parent.parent.get(f"present/{link}")
    return np.ones(last - first, dtype=bool) if mask is None else mask[first:last]


def _numeric(column: Any, first: int, last: int) -> Any:
    """The column as floats, NaN where a row lacks it; None where no row has a number."""
    if column.attrs["kind"] != "json":
        if not _present(column, first, last).any():
            return None
        return column[first:last].astype(np.float64, copy=False)
    numbers = {n: v for n, v in _values(column, first, last) if type(v) in (int, float)}
    if not numbers:
        return None
    spread = np.full(last - first, math.nan)
    for place, number in numbers.items():
        spread[place] = as_float(number)
    return spread


def _put(leaf: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        leaf = leaf.setdefault(name, {})
    leaf[path[-1]] = value


def _time(value: float) -> float | None:
    return None if math.isnan(value) else value
