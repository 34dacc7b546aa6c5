"""MLflow's view of the store, which it finds by the entry point `mlflow.tracking_store`: trials are
its runs. Inside a run of ours, MLflow writes to the run of this trial."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from mlflow.entities import (
    Experiment,
    ExperimentTag,
    LifecycleStage,
    Metric,
    Param,
    Run,
    RunData,
    RunInfo,
    RunTag,
    ViewType,
)
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_STATE, RESOURCE_DOES_NOT_EXIST
from mlflow.store.entities.paged_list import PagedList
from mlflow.store.tracking.abstract_store import AbstractStore
from mlflow.utils.search_utils import SearchExperimentsUtils, SearchUtils

from detslurm._base import contract
from detslurm._base.info import get_cluster_info
from detslurm.config.secret_names import MASK, is_secret
from detslurm.config.secret_texts import masked_text
from detslurm.sdk.client import Client
from detslurm.sdk.experiments.experiment import Experiment as OurExperiment
from detslurm.sdk.export.content import (
    ExperimentContent,
    Rows,
    TrialContent,
    content_of,
    reported_at,
)
from detslurm.store import (
    ExperimentDir,
    ExperimentRow,
    NotFound,
    TrialDir,
    as_float,
    flat,
    is_number,
)

_STATUS: Final = {
    "COMPLETED": "FINISHED",
    "ERROR": "FAILED",
    "CANCELED": "KILLED",
    "RUNNING": "RUNNING",
}
"""MLflow's words; a trial in any other state waits."""


class TrackingStore(AbstractStore):  # type: ignore[misc]
    """Experiments and trials of a store, as MLflow reads them."""

    def __init__(self, store_uri: str = "detslurm://", artifact_uri: str | None = None) -> None:
        super().__init__()
        self._client = Client(unquote(urlsplit(store_uri).path) or None)

    # -- experiments -----------------------------------------------------------------------------

    def search_experiments(
        self,
        view_type: int = ViewType.ACTIVE_ONLY,
        max_results: int = 1000,
        filter_string: str | None = None,
        order_by: list[str] | None = None,
        page_token: str | None = None,
    ) -> PagedList:
        """Experiments that match a filter of MLflow's; archived ones are its deleted ones."""
        stages = LifecycleStage.view_type_to_stages(view_type)
        every = [_experiment(row) for row in self._client.newest_rows(archived=True)]
        some = [one for one in every if one.lifecycle_stage in stages]
        matching = SearchExperimentsUtils.filter(some, filter_string)
        order = order_by or ["creation_time DESC", "experiment_id ASC"]
        found = SearchExperimentsUtils.sort(matching, order)
        return PagedList(*SearchUtils.paginate(found, page_token, max_results))

    def get_experiment(self, experiment_id: str) -> Experiment:
        return _experiment(self._experiment(experiment_id).row)

    def get_experiment_by_name(self, experiment_name: str) -> Experiment | None:
        """The experiment of a name, in MLflow's list (`7 digits`) or in ours (the newest)."""
        newest = None
        for row in self._client.newest_rows(archived=True):
            if _name(row) == experiment_name:
                return _experiment(row)
            # MLflow refuses to go on with an archived one, which its user has put away.
            if row.name == experiment_name and newest is None and not row.archived:
                newest = _experiment(row)
        return newest

    def _experiment(self, experiment_id: str) -> OurExperiment:
        try:
            return self._client.experiment(int(experiment_id))
        except (NotFound, ValueError) as error:
            raise _absent(f"experiment {experiment_id}") from error

    # -- runs ------------------------------------------------------------------------------------

    def get_run(self, run_id: str) -> Run:
        experiment, trial = self._trial(run_id)
        return next(run for run in _runs(experiment) if run.info.run_id == str(trial.id))

    def _search_runs(
        self,
        experiment_ids: Sequence[str],
        filter_string: str | None,
        run_view_type: int,
        max_results: int,
        order_by: list[str] | None,
        page_token: str | None,
    ) -> tuple[list[Run], str | None]:
        stages = LifecycleStage.view_type_to_stages(run_view_type)
        runs = [
            run
            for experiment_id in experiment_ids
            for run in self._runs_of(experiment_id)
            if run.info.lifecycle_stage in stages
        ]
        ordered = SearchUtils.sort(SearchUtils.filter(runs, filter_string), order_by)
        some, token = SearchUtils.paginate(ordered, page_token, max_results)
        return list(some), token

    def _runs_of(self, experiment_id: str) -> list[Run]:
        return list(_runs(content_of(self._experiment(experiment_id))))

    def get_metric_history(
        self,
        run_id: str,
        metric_key: str,
        max_results: int | None = None,
        page_token: str | None = None,
    ) -> PagedList:
        experiment, trial = self._trial(run_id)
        rows = {one.id: one.read() for one in experiment.trials}
        metrics = _metrics(trial, rows[trial.id], _names(rows.values()))
        found = [metric for metric in metrics if metric.key == metric_key]
        if max_results is None:
            return PagedList(found, None)
        return PagedList(*SearchUtils.paginate(found, page_token, max_results))

    def _trial(self, run_id: str) -> tuple[ExperimentContent, TrialContent]:
        try:
            experiment = content_of(self._client.stored_trial(int(run_id)).experiment)  # no squeue
        except (NotFound, ValueError) as error:
            raise _absent(f"trial {run_id}") from error
        for trial in experiment.trials:
            if trial.id == int(run_id):
                return experiment, trial
        raise _absent(f"run of trial {run_id}, which has not begun")

    # -- a run of ours writes --------------------------------------------------------------------

    def create_experiment(self, name: str, artifact_location: str, tags: Any) -> str:
        """The experiment of this run, whatever its name."""
        return str(_OwnRun.here().trial.experiment_id)

    def create_run(
        self, experiment_id: str, user_id: str, start_time: int, tags: Any, run_name: str
    ) -> Run:
        """The run of this trial: `mlflow.start_run()` goes on with it."""
        own = _OwnRun.here()
        own.write((), tags or ())
        return self.get_run(str(own.trial.id))

    def log_batch(self, run_id: str, metrics: Any, params: Any, tags: Any) -> None:
        """Keep parameters and tags; metrics take the way of `record: [mlflow]`."""
        own = _OwnRun.here()
        if str(own.trial.id) != run_id:
            raise _refused(f"run {run_id} is not the run of this trial, {own.trial.id}")
        if metrics and not own.records_metrics:
            raise _refused("the configuration lacks `record: [mlflow]`, which records metrics")
        own.write(params, tags)

    def update_run_info(
        self, run_id: str, run_status: Any, end_time: Any, run_name: Any
    ) -> RunInfo:
        """The run as it is: detslurm decides when a run has ended, and how."""
        return self.get_run(run_id).info

    def log_inputs(self, run_id: str, datasets: Any = None, models: Any = None) -> None:
        """Nothing: the store keeps no data sets."""

    def delete_run(self, *args: Any, **kwargs: Any) -> None:
        """Refuse, as every change of a record."""
        raise _refused("detslurm's own commands change and delete experiments")

    delete_experiment = restore_experiment = rename_experiment = delete_run
    restore_run = set_experiment_tag = delete_experiment_tag = delete_tag = delete_run

    # -- MLflow's pages ask for these; a store of ours has none ------------------------------------

    def search_logged_models(self, *args: Any, **kwargs: Any) -> PagedList:
        return PagedList([], None)

    def search_traces(self, *args: Any, **kwargs: Any) -> tuple[list[Any], None]:
        return [], None

    def search_datasets(self, *args: Any, **kwargs: Any) -> PagedList:
        return PagedList([], None)

    def _search_datasets(self, experiment_ids: list[str]) -> list[Any]:
        return []


@dataclass(frozen=True)
class _OwnRun:
    """The run that this process belongs to; its parameters and tags have a file of their own."""

    trial: TrialDir
    run: int
    records_metrics: bool

    @classmethod
    def here(cls) -> _OwnRun:
        """The run of this process's environment. Raises MLflow's error outside of runs."""
        info = get_cluster_info()
        if info is None or info.trial is None or contract.EXPERIMENT_DIR not in os.environ:
            raise _refused("only the code of a run writes to the store, and this is not one")
        experiment = ExperimentDir.at(Path(os.environ[contract.EXPERIMENT_DIR]))
        return cls(
            trial=experiment.trial(info.trial.trial_id),
            run=info.trial._trial_run_id,
            records_metrics="mlflow" in os.environ.get(contract.RECORD_FROM, "").split(","),
        )

    def write(self, params: Iterable[Param], tags: Iterable[RunTag]) -> None:
        """Append them, a line each."""
        named = [("param", params), ("tag", tags)]
        lines = [
            json.dumps([kind, one.key, _without_secret(one.key, one.value)])
            for kind, some in named
            for one in some
        ]
        if lines:
            with _own_file(self.trial, self.run).open("a") as file:
                file.write("".join(f"{line}\n" for line in lines))


def _without_secret(name: str, value: str) -> str:
    return MASK if is_secret(name, value) else masked_text(value)


def _own_file(trial: TrialDir, run: int) -> Path:
    return trial.path / f"run-{run}.mlflow"


def _written(trial: TrialContent, kind: str) -> dict[str, str]:
    """The parameters or tags that the trial's runs wrote; the newest of a name stands."""
    found: dict[str, str] = {}
    for run in range(1, trial.row.run_count + 1):
        with suppress(OSError):
            for line in _own_file(trial.directory, run).read_text().splitlines():
                with suppress(ValueError):  # torn
                    of, name, value = json.loads(line)
                    found |= {name: value} if of == kind else {}
    return found


def _refused(why: str) -> MlflowException:
    return MlflowException(f"detslurm's store takes no writes here: {why}", INVALID_STATE)


def _absent(thing: str) -> MlflowException:
    return MlflowException(f"the store has no {thing}", error_code=RESOURCE_DOES_NOT_EXIST)


def _name(row: ExperimentRow) -> str:
    return f"{row.id} {row.name}"


def _experiment(row: ExperimentRow) -> Experiment:
    tags = {"mlflow.note.content": row.description, "detslurm.state": row.state}
    created = _milliseconds(row.created)
    return Experiment(
        str(row.id),
        _name(row),
        artifact_location="",
        lifecycle_stage=LifecycleStage.DELETED if row.archived else LifecycleStage.ACTIVE,
        tags=[ExperimentTag(key, value) for key, value in tags.items() if value],
        creation_time=created,
        last_update_time=_milliseconds(row.ended) or created,
    )


def _runs(experiment: ExperimentContent) -> Iterator[Run]:
    rows = {trial.id: trial.read() for trial in experiment.trials}
    names = _names(rows.values())
    for trial in experiment.trials:
        last = {metric.key: metric for metric in _metrics(trial, rows[trial.id], names)}
        yield Run(_run_info(experiment, trial), _run_data(experiment, trial, list(last.values())))


def _run_info(experiment: ExperimentContent, trial: TrialContent) -> RunInfo:
    archived = experiment.view.row().archived
    return RunInfo(
        run_id=str(trial.id),
        experiment_id=str(experiment.id),
        user_id=experiment.view.owner,
        status=_STATUS.get(trial.row.state, "SCHEDULED"),
        start_time=_milliseconds(trial.row.started) or 0,
        end_time=_milliseconds(trial.row.ended) if trial.over else None,
        lifecycle_stage=LifecycleStage.DELETED if archived else LifecycleStage.ACTIVE,
        artifact_uri=(trial.directory.path / "mlflow").as_uri(),
        run_name=f"{experiment.name}/{trial.id}",
    )


def _run_data(experiment: ExperimentContent, trial: TrialContent, metrics: list[Metric]) -> RunData:
    config = dict(flat(experiment.config, "config."))
    named = {**_written(trial, "param"), **trial.hparams, **config}
    tags = {
        "mlflow.runName": f"{experiment.name}/{trial.id}",
        "mlflow.user": experiment.view.owner,
        "detslurm.state": trial.row.state,
        **_written(trial, "tag"),
        **{f"label.{label}": "true" for label in experiment.view.labels},
    }
    return RunData(
        metrics=metrics,
        params=[Param(name, _text(value)) for name, value in named.items()],
        tags=[RunTag(name, value) for name, value in tags.items()],
    )


def _names(curves: Iterable[Rows]) -> Mapping[tuple[str, str], str]:
    """The key of each metric by group and name; the group is a part of it if several have it."""
    every = {
        (row.group, name)
        for rows in curves
        for row in rows
        for name, value in flat(row.metrics)
        if is_number(value)
    }
    groups = Counter(name for _, name in every)
    return {(g, name): name if groups[name] == 1 else f"{g}/{name}" for g, name in every}


def _metrics(
    trial: TrialContent, rows: Rows, names: Mapping[tuple[str, str], str]
) -> Iterator[Metric]:
    for row in rows:
        reported = _milliseconds(reported_at(trial, row)) or 0
        for name, value in flat(row.metrics):
            if is_number(value):
                yield Metric(names[row.group, name], as_float(value), reported, row.steps)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
