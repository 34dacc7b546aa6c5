"""CSV and Parquet: for each experiment tables of its trials and of their metrics, and its
configuration."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from detslurm._base.display import spreadsheet_text
from detslurm.sdk.experiments.pareto import ParetoStatus, front_columns, pareto_statuses
from detslurm.sdk.export.content import ExperimentContent, ExportWriter, TrialContent
from detslurm.sdk.trials.metrics import moment
from detslurm.store import fs
from detslurm.store.columns import column_name
from detslurm.store.curve import flat

_METRIC_KEYS = ("experiment", "trial", "run", "group", "steps", "time")

Row = dict[str, Any]
Columns = dict[str, list[Any]]


def trial_rows(experiment: ExperimentContent) -> list[Row]:
    """A row for each trial: its state, its hyperparameters, its best validation."""
    found = pareto_statuses(experiment.view, (trial.row for trial in experiment.trials))
    return [_trial_row(experiment, trial, found.get(trial.id)) for trial in experiment.trials]


def _trial_row(
    experiment: ExperimentContent, trial: TrialContent, status: ParetoStatus | None
) -> Row:
    row, best = trial.row, trial.row.best_validation
    checkpoint = row.latest_checkpoint
    found = {
        "experiment": experiment.id,
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
        f"best_{experiment.view.metric or 'value'}": best.value if best else None,
        **({} if status is None else front_columns(status)),
        "latest_checkpoint": checkpoint.uuid if checkpoint else None,
    }
    return {**found, **{f"hparams.{name}": value for name, value in trial.hparams.items()}}


def metric_rows(experiment: ExperimentContent) -> Iterator[Row]:
    """A row for each group and step of each trial, on the clean curve."""
    for trial in experiment.trials:
        for row in trial.read():
            keys = (experiment.id, trial.id, row.run, row.group, row.steps, moment(row.time))
            found = dict(zip(_METRIC_KEYS, keys, strict=True))
            for name, value in flat(row.metrics):
                found[column_name(name, _METRIC_KEYS)] = value
            yield found


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
        _replace(place / "config.json", lambda stage: stage.write_text(config + "\n"))
        trials = _columns(trial_rows(experiment))
        metrics = _columns(metric_rows(experiment), _METRIC_KEYS)
        trials_path, metrics_path = (place / f"{n}.{self.ending}" for n in ("trials", "metrics"))
        _replace(trials_path, lambda stage: self._write(stage, trials, ("started", "ended")))
        _replace(metrics_path, lambda stage: self._write(stage, metrics, ("time",)))

    def _write(self, path: Path, columns: Columns, times: Sequence[str]) -> None:
        """Write columns; `times` are those of moments, whatever their values are."""
        raise NotImplementedError


def _columns(rows: Iterable[Row], keys: Sequence[str] = ()) -> Columns:
    """The values of rows by column; the columns `keys` exist without a row, too."""
    columns: Columns = {name: [] for name in keys}
    for count, row in enumerate(rows):
        for name in row:
            columns.setdefault(name, [None] * count)
        for name, column in columns.items():
            column.append(row.get(name))
    return columns


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    stage = Path(fs.temporary_name(str(path)))
    try:
        write(stage)
        fs.sync_file(str(stage))
        stage.replace(path)
    finally:
        fs.discard(str(stage))


class CsvWriter(_Tables):
    """CSV: moments in UTC, lists and truth values as JSON."""

    ending = "csv"

    def _write(self, path: Path, columns: Columns, times: Sequence[str]) -> None:
        with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(map(spreadsheet_text, columns))
            for row in zip(*columns.values(), strict=True):
                writer.writerow([spreadsheet_text(_cell(value)) for value in row])


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value if value is None or isinstance(value, (str, float)) else json.dumps(value)


class ParquetWriter(_Tables):
    """Parquet: numbers as numbers; columns that mix types as JSON."""

    ending = "parquet"

    def _write(self, path: Path, columns: Columns, times: Sequence[str]) -> None:
        import pyarrow
        import pyarrow.parquet

        arrays = {name: _array(values, time=name in times) for name, values in columns.items()}
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
