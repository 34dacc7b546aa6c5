"""MLflow: experiments and trials as runs in a SQLite tracking file, through MLflow's client."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.export.content import (
    ExperimentContent,
    ExportWriter,
    Rows,
    TrialContent,
    reported_at,
    scalars,
)
from detslurm.store import flat
from detslurm.store.artifacts import Artifact

_EXPERIMENT: Final = "detslurm.experiment"
_RUN: Final = "detslurm.run_id"
_STATUS: Final = {"COMPLETED": "FINISHED", "ERROR": "FAILED", "CANCELED": "KILLED"}
_NOTE: Final = "mlflow.note.content"
_LABEL: Final = "label."
_KEY, _VALUE, _DESCRIPTION = 250, 6000, 20_000  # characters, at most
_METRICS, _PARAMS = 1000, 100  # at once


class MlflowWriter(ExportWriter):
    """Writes `mlflow.db`; images and tables are in `artifacts`."""

    def __init__(self, folder: Path) -> None:
        if "?" in str(folder):  # there the address of a database ends, and its options begin
            raise LifecycleError(f"MLflow can't have its file in {folder}: a '?' is in its name")
        self._folder = folder
        self._client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
        self._experiments: dict[str, str] = {}

    def write_trial(self, trial: TrialContent, rows: Rows, restarted: bool) -> None:
        """Add to the run of a trial; after a restart, the earlier run goes to MLflow's trash."""
        home = self._home(trial.experiment)
        wanted = f"tags.`{_RUN}` = '{trial.run_id}'"
        found = self._client.search_runs([home], wanted, max_results=1)
        run_id = found[0].info.run_id if found else None
        if run_id is not None and restarted:
            self._client.delete_run(run_id)
            run_id = None
        if run_id is None:
            run_id = self._begin(home, trial)
        self._log(run_id, trial, rows)
        self._log_artifacts(run_id, trial)
        self._describe(run_id, trial)

    def _home(self, experiment: ExperimentContent) -> str:
        """The MLflow experiment, found by its mark whatever its name was."""
        known = self._experiments.get(experiment.mark)
        if known is None:
            wanted = f"tags.`{_EXPERIMENT}` = '{experiment.mark}'"
            found = self._client.search_experiments(filter_string=wanted, max_results=1)
            name = f"{experiment.id} {experiment.name}"[:500]
            known = found[0].experiment_id if found else self._create(experiment, name)
            self._client.rename_experiment(known, name)
            description = experiment.view.description[:_DESCRIPTION]
            self._client.set_experiment_tag(known, _NOTE, description)
            self._experiments[experiment.mark] = known
        return known

    def _create(self, experiment: ExperimentContent, name: str) -> str:
        tags = {_EXPERIMENT: experiment.mark}
        place = (self._folder / "artifacts").as_uri()
        return str(self._client.create_experiment(name, artifact_location=place, tags=tags))

    def _begin(self, home: str, trial: TrialContent) -> str:
        tags = {_RUN: trial.run_id, "detslurm.trial": str(trial.id)}
        run = self._client.create_run(home, start_time=_milliseconds(trial.row.started), tags=tags)
        run_id = str(run.info.run_id)
        named = [*trial.hparams.items(), *flat(trial.experiment.config, "config.")]
        keys = _keys(name for name, _ in named)
        params = [Param(key, _value(v)) for key, (_, v) in zip(keys, named, strict=True)]
        for some in _batches(params, _PARAMS):
            self._client.log_batch(run_id, params=some)
        return run_id

    def _log(self, run_id: str, trial: TrialContent, rows: Rows) -> None:
        """Log all rows; MLflow ignores those that it has."""
        tags = dict.fromkeys(tag for row in rows for tag, _ in scalars(row))
        keys = dict(zip(tags, _keys(tags), strict=True))
        metrics = [
            Metric(keys[tag], value, _milliseconds(reported_at(trial, row)) or 0, row.steps)
            for row in rows
            for tag, value in scalars(row)
        ]
        for some in _batches(metrics, _METRICS):
            self._client.log_batch(run_id, metrics=some)

    def _log_artifacts(self, run_id: str, trial: TrialContent) -> None:
        """Images and tables as files, `NAME/STEP.png`; those of an earlier export are replaced."""
        for name, some in groupby(sorted(trial.artifacts(), key=_by_name), _by_name):
            with tempfile.TemporaryDirectory() as folder:
                for one in some:
                    Path(folder, f"{one.steps}.{one.media}").write_bytes(one.data)
                self._client.log_artifacts(run_id, folder, _key(name) or "_")

    def _describe(self, run_id: str, trial: TrialContent) -> None:
        """Write all that may change after a run has begun."""
        tags = {_key(_LABEL + label): "true" for label in trial.experiment.view.labels}
        for earlier in self._client.get_run(run_id).data.tags:
            if earlier.startswith(_LABEL) and earlier not in tags:
                self._client.delete_tag(run_id, earlier)
        for tag, value in {**tags, "detslurm.state": trial.row.state}.items():
            self._client.set_tag(run_id, tag, value)
        self._client.update_run(run_id, status="RUNNING", name=trial.name[:250])
        if trial.over:
            status = _STATUS.get(trial.row.state, "FINISHED")
            self._client.set_terminated(run_id, status, _milliseconds(trial.row.ended))


def _by_name(one: Artifact) -> str:
    return one.name


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)


def _keys(names: Iterable[str]) -> Iterator[str]:
    """Names as MLflow allows them, no two alike; more names at the end change none before them."""
    taken: set[str] = set()
    for name in names:
        key, number = _key(name), 1
        while key in taken:
            number += 1
            key = f"{_key(name)[: _KEY - 1 - len(str(number))]}_{number}"
        taken.add(key)
        yield key


def _key(name: str) -> str:
    """A name as MLflow allows it: a path without parts that are empty or begin with a dot."""
    allowed = re.sub(r"[^\w\-. :/]", "_", name)
    return re.sub(r"(?<![^/])(\.+|(?![^/]))", "_", allowed)[:_KEY].rstrip("/")


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text[:_VALUE]


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
