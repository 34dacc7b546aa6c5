"""CSV and Parquet: for each experiment tables of its trials and of their metrics, and its
configuration."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from detslurm._base.display import spreadsheet_text
from detslurm.sdk.experiments.pareto import ParetoStatus, front_columns, pareto_statuses
from detslurm.sdk.export.content import ExperimentContent, ExportWriter, TrialContent
from detslurm.sdk.trials.metrics import moment
from detslurm.sdk.whole_file import whole_file
from detslurm.store import column_name, flat, fs

_METRIC_KEYS = ("experiment", "trial", "run", "group", "steps", "time")

Row = dict[str, Any]


class ExportTable(NamedTuple):
    """Values by column; `times` names the columns of moments, whatever their values are."""

    columns: dict[str, list[Any]]
    times: Sequence[str]


class _Tables(ExportWriter):
    """Each experiment in a directory of its own, its files replaced whole."""

    ending: str

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write_experiment(self, experiment: ExperimentContent) -> None:
        """Replace the tables of an experiment."""
        place = self._folder / experiment.folder
        place.mkdir(exist_ok=True)
        config = json.dumps(experiment.config, indent=2, default=str)
        trials = ExportTable(_columns(_trial_rows(experiment)), ("started", "ended"))
        metrics = ExportTable(_columns(_metric_rows(experiment), _METRIC_KEYS), ("time",))
        _replace(place / "config.json", lambda stage: stage.write_text(config + "\n"))
        _replace(place / f"trials.{self.ending}", lambda stage: self._write(stage, trials))
        _replace(place / f"metrics.{self.ending}", lambda stage: self._write(stage, metrics))

    def _write(self, path: Path, table: ExportTable) -> None:
        raise NotImplementedError


def _trial_rows(experiment: ExperimentContent) -> Iterator[Row]:
    """A row for each trial: its state, its hyperparameters, its best validation."""
    found = pareto_statuses(experiment.view, (trial.row for trial in experiment.trials))
    for trial in experiment.trials:
        yield _trial_row(trial, found.get(trial.id))


def _trial_row(trial: TrialContent, status: ParetoStatus | None) -> Row:
    row, best, metric = trial.row, trial.row.best_validation, trial.experiment.view.metric
    return {
        "experiment": trial.experiment.id,
        "trial": row.id,
        "run_id": trial.run_id,
        "state": row.state,
        "reason": row.end_reason,
        "started": moment(row.started),
        "ended": moment(row.ended),
        "runs": row.run_count,
        "restarts": row.restarts,
        "steps": row.steps,
        "best_steps": best.steps if best else None,
        f"best_{metric or 'value'}": best.value if best else None,
        **({} if status is None else front_columns(status)),
        "latest_checkpoint": row.latest_checkpoint.uuid if row.latest_checkpoint else None,
        **{f"hparams.{name}": value for name, value in trial.hparams.items()},
    }


def _metric_rows(experiment: ExperimentContent) -> Iterator[Row]:
    """A row for each group and step of each trial, on the clean curve."""
    for trial in experiment.trials:
        for row in trial.read():
            keys = (experiment.id, trial.id, row.run, row.group, row.steps, moment(row.time))
            found = dict(zip(_METRIC_KEYS, keys, strict=True))
            for name, value in flat(row.metrics):
                found[column_name(name, _METRIC_KEYS)] = value
            yield found


def _columns(rows: Iterable[Row], keys: Sequence[str] = ()) -> dict[str, list[Any]]:
    """The values of rows by column; the columns `keys` exist without a row, too."""
    columns: dict[str, list[Any]] = {name: [] for name in keys}
    for count, row in enumerate(rows):
        for name in row:
            columns.setdefault(name, [None] * count)
        for name, column in columns.items():
            column.append(row.get(name))
    return columns


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    with whole_file(path) as draft:
        write(draft)
        fs.sync_file(str(draft))


class CsvWriter(_Tables):
    """CSV: moments in UTC, lists and truth values as JSON."""

    ending = "csv"

    def _write(self, path: Path, table: ExportTable) -> None:
        with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(map(spreadsheet_text, table.columns))
            for row in zip(*table.columns.values(), strict=True):
                writer.writerow([spreadsheet_text(_cell(value)) for value in row])


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value if value is None or isinstance(value, (str, float)) else json.dumps(value)


class ParquetWriter(_Tables):
    """Parquet: numbers as numbers; columns that mix types as JSON."""

    ending = "parquet"

    def _write(self, path: Path, table: ExportTable) -> None:
        import pyarrow
        import pyarrow.parquet

        arrays = {
            name: _array(values, time=name in table.times) for name, values in table.columns.items()
        }
        pyarrow.parquet.write_table(pyarrow.table(arrays), os.fspath(path), compression="zstd")


def _array(values: Sequence[Any], *, time: bool) -> Any:
    import pyarrow

    if time:
        return pyarrow.array(values, pyarrow.timestamp("us", tz="UTC"))
    kinds = {type(value) for value in values} - {type(None)}
    try:
        if kinds == {int}:
            return pyarrow.array(values, pyarrow.int64())
        if kinds <= {int, float}:
            return pyarrow.array(values, pyarrow.float64())
        if kinds in ({str}, {bool}):
            return pyarrow.array(values)
    except (pyarrow.ArrowInvalid, OverflowError, UnicodeEncodeError):
        pass  # a number of more than 64 bits, or broken text
    return pyarrow.array([None if value is None else json.dumps(value) for value in values])
