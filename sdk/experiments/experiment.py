"""An experiment as an object: its state, and what its user can do with it.

Methods import the modules that do their work: lists and the queue load few of them (tests/perf).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import ValidationError

from detslurm.sdk.deprecation import deprecated
from detslurm.sdk.enums import ExperimentState, OrderBy, TrialSortBy
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.checkpoints import ExperimentCheckpoints
from detslurm.sdk.experiments.derivation import DerivedExperiments
from detslurm.sdk.experiments.disk import DiskUse
from detslurm.sdk.experiments.lifecycle import Lifecycle
from detslurm.sdk.experiments.settings import Settings
from detslurm.sdk.jobs.status import JobStatus
from detslurm.store import StoreError, TrialRow

if TYPE_CHECKING:
    import pandas

    from detslurm.sdk.costs.efficiency import Efficiency
    from detslurm.sdk.display import Report
    from detslurm.sdk.export import ExportedTrial, Format
    from detslurm.sdk.provenance.view import Provenance
    from detslurm.sdk.searches.view import SearchView
    from detslurm.sdk.trials.metrics import TrialMetrics
    from detslurm.sdk.trials.trial import Trial
    from detslurm.store import TrainingTime


class Experiment(Lifecycle, Settings, DerivedExperiments, DiskUse, ExperimentCheckpoints):
    """One experiment, as it was when it was read last: `Client().experiment(ID)` returns it.

    Methods that change it write to the store first and then act on the queue. A queue that does not
    answer is reported by the client's `warn`: the jobs' runners read the store every minute. Only
    the owner may change an experiment: `LifecycleError` for others. Setters raise `LifecycleError`
    for a value that is not allowed and `TypeError` for a value of another type. Methods that read
    records raise `StoreError` if they can't.
    """

    def reload(self) -> Experiment:
        """Return this object, read again from the store and, if unfinished, from the queue."""
        self._read_again()
        return self

    def wait(self, interval: float = 5.0) -> ExperimentState:
        """Return the state at the end of the experiment: COMPLETED, CANCELED, ERROR or DELETED.

        The store is read every `interval` seconds (5 by default), more often at first; of a big
        experiment more rarely. The queue is queried every 30 seconds at most. Raises `ValueError`
        if it is paused and nothing of it runs any more, or `interval` is not positive.
        """
        from detslurm.sdk.experiments.polling import wait

        if not interval > 0:
            raise ValueError(f"interval is a positive number of seconds, not {interval!r}")
        wait(self, interval=interval)
        if self.state == ExperimentState.PAUSED:
            why = f" ({self.view.pause_reason})" if self.view.pause_reason else ""
            raise ValueError(f"experiment {self.id} is paused{why}: activate() lets it go on")
        return self.state

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, with secrets masked; `StoreError` if it can't be read."""
        from detslurm.config import ExperimentConfig

        plain = self._snapshot.directory.config()
        try:
            return ExperimentConfig.from_dict(plain).masked()
        except ValidationError as error:
            raise StoreError(f"this version does not understand it: {error}") from error

    def provenance(self) -> Provenance:
        """Return the record of what it ran: code, packages, hardware and options of sbatch."""
        from detslurm.sdk.provenance.view import provenance_of

        return provenance_of(self._snapshot)

    def write_ro_crate(self, path: os.PathLike[str] | str) -> Path:
        """Write the record of what it ran as a Process Run Crate to the directory `path`, and
        return it. It is a `LifecycleError` if that is not new or empty."""
        from detslurm.sdk.provenance.crate import write_crate

        return write_crate(self._snapshot, self.config, Path(path))

    @property
    def trial_rows(self) -> list[TrialRow]:
        """The experiment's trials in short, by id."""
        return list(self._snapshot.trial_rows.values())

    def job_status(self, trial_id: int) -> JobStatus | None:
        """Return the status of the job of the trial `trial_id`, or None for a finished trial."""
        return self._snapshot.job_statuses.get(trial_id)

    @property
    def search(self) -> SearchView | None:
        """The experiment's search; None if results do not decide which trials there are."""
        return self._snapshot.search

    @property
    def message(self) -> str | None:
        """A message about the whole experiment, such as why it failed; None without a message."""
        return self._snapshot.message or self.reason

    @property
    def reason(self) -> str | None:
        """Why it failed, or why it is paused if not by its user; None in other states."""
        return self.row.reason

    # -- its trials -------------------------------------------------------------------------------

    def trials(self) -> list[Trial]:
        """Return the experiment's trials, by id."""
        return self._trials(self._snapshot.trials)

    def _trials(self, ids: Iterable[int]) -> list[Trial]:
        from detslurm.sdk.trials.trial import Trial

        return [Trial(self, number) for number in ids]

    def pareto_front(self) -> list[Trial]:
        """Return the trials on the Pareto front: those that no other trial beats in one of the
        searcher's metrics without a loss in another, by the first metric.

        Each trial is compared by its best validation. The trials keep all constraints; the list is
        empty if none does. With a single metric these are all trials with its best value.
        `view.best_trial` is one of them.
        """
        from detslurm.sdk.experiments.pareto import front_ids

        return self._trials(front_ids(self.row, self.trial_rows))

    def first_trial(self) -> Trial:
        """Return the trial with the smallest id; `LifecycleError` if there is no trial yet."""
        search = self._snapshot.search
        ids = list(search.created_ids if search is not None else self._snapshot.trials)
        if not ids:
            raise LifecycleError(f"experiment {self.id} has no trials yet")
        return self._trials(ids[:1])[0]

    def list_trials(
        self, sort_by: TrialSortBy = TrialSortBy.ID, order_by: OrderBy = OrderBy.ASCENDING
    ) -> list[Trial]:
        """Return the trials by `sort_by` (ids by default) in the direction `order_by` (ascending by
        default); those without the value come last."""
        from detslurm.sdk.experiments.ordering import trials_by

        def size(row: TrialRow) -> int:
            return self._trials([row.id])[0].total_checkpoint_size

        return self._trials(r.id for r in trials_by(self.trial_rows, sort_by, order_by, size=size))

    def iter_trials(
        self,
        sort_by: TrialSortBy = TrialSortBy.ID,
        order_by: OrderBy = OrderBy.ASCENDING,
        limit: int | None = None,
    ) -> Iterator[Trial]:
        """Return the trials one at a time, with arguments as in `list_trials`; `limit`, the size of
        Determined's pages, has no effect (None by default)."""
        yield from self.list_trials(sort_by, order_by)

    def get_trials(
        self, sort_by: TrialSortBy = TrialSortBy.ID, order_by: OrderBy = OrderBy.ASCENDING
    ) -> list[Trial]:
        """Return the same as `list_trials`: its older name, with arguments as in `list_trials`."""
        deprecated("Experiment.get_trials", "list_trials")
        return self.list_trials(sort_by, order_by)

    def await_first_trial(self, interval: float = 0.1) -> Trial:
        """Return the first trial as soon as it exists, with a look every `interval` seconds, by
        default 0.1; `LifecycleError` if the experiment ends before it has a trial."""
        from detslurm.sdk.experiments.polling import first_trial

        return first_trial(self, interval=interval)

    def efficiency(self) -> list[Efficiency]:
        """Return `Trial.efficiency` of each trial that has begun, by id."""
        from detslurm.sdk.costs.efficiency import efficiencies

        begun = [(trial.directory, trial.view) for trial in self.trials() if trial.row.run_count]
        return efficiencies(self._snapshot.facts, begun, self._queues)

    def training_time(self) -> TrainingTime | None:
        """Return the use of the time of all its trials together: `ettr`, and the seconds of
        `parts` such as "save"; None if none has begun."""
        from detslurm.sdk.costs.efficiency import total_time

        return total_time(self.efficiency())

    def logs(self, follow: bool = False, **chosen: Any) -> Iterable[str]:
        """Return the lines of its first trial's log, with `**chosen` and the other arguments as in
        `Trial.logs`; `LifecycleError` if there is no trial yet."""
        return self.first_trial().logs(follow, **chosen)

    def iter_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """Return the reports of its trials, trial by trial and step by step, of a `group` such as
        "training", by default of all. A mistyped group is a `ValueError` with the known ones."""
        from detslurm.sdk.trials.metrics import metrics_of

        return metrics_of((trial.directory for trial in self.trials()), group)

    # -- in a notebook ----------------------------------------------------------------------------

    def __repr__(self) -> str:
        from detslurm.sdk.display import reason_text

        row = self.row
        return (
            f"Experiment(id={row.id}, name={row.name!r}, state={row.state!r},"
            f" trials={row.trial_count}{reason_text(self.reason)})"
        )

    def _repr_html_(self) -> str:
        from detslurm.sdk.display import experiment_html

        return experiment_html(self.row, self.trial_rows, self.path)

    def report(self) -> Report:
        """Return the page that `detslurm report` writes, read anew and without code; a notebook
        shows it, and its `save(path)` writes it. Without plotly it is a `LifecycleError`."""
        # By name: it stands above this package.
        made: Report = import_module("detslurm.look.inline").report_of(self.reload())
        return made

    def snapshot(
        self,
        *,
        trials: Collection[int] | None = None,
        curves: bool = True,
        code: bool = False,
        log_lines: int = 50,
    ) -> dict[str, Any]:
        """Return all data of a report as plain data, which `json.dumps` takes.

        The experiment is read again first; it is alone in the document's `experiments`.
        docs/snapshot.md describes the document. Unreadable data is named in `problems`.

        Args:
            trials: The ids of the trials to show, whose log tails are shown too; by default all.
            curves: Whether to read metrics and the profiler's figures; on by default.
            code: Whether to list the experiment's code; off by default.
            log_lines: How many lines of the logs of failed trials to show at most; 50 by default.

        Example:
            import detslurm as det
            from detslurm.sdk import Client

            with det.core.init() as core:
                core.train.report_validation_metrics(1, {"loss": 0.5})
            (experiment,) = Client().experiment(1).snapshot()["experiments"]
            (trial,) = experiment["trials"]
            (curve,) = trial["curves"]
            assert (curve["metric"], curve["values"]) == ("loss", [0.5])
        """
        look = import_module("detslurm.look.snapshot")  # by name: it stands above this package
        taken = look.snapshot(
            [self.reload()], trials=trials, curves=curves, code=code, log_lines=log_lines
        )
        document: dict[str, Any] = look.plain_data(taken)
        return document

    def trials_frame(self) -> pandas.DataFrame:
        """Return the trials as a data frame of pandas, by id: the state, each hyperparameter
        (`hparams.lr`), the batches trained, the restarts, the best and the latest searcher metric,
        and the times of start and end. Raises `ModuleNotFoundError` without pandas."""
        from detslurm.sdk.frames import trials_frame

        return trials_frame(self.trial_rows, self.row)

    def metrics_frame(
        self, group: str = "validation", names: Sequence[str] | None = None
    ) -> pandas.DataFrame:
        """Return all trials' metrics as a data frame: arguments as in `Trial.metrics_frame`,
        `group` is "validation" by default."""
        from detslurm.sdk.frames import metrics_frame

        return metrics_frame((trial.directory for trial in self.trials()), group, names)

    # -- its code ---------------------------------------------------------------------------------

    def export(self, to: Format, folder: Path | str) -> list[ExportedTrial]:
        """Bring the export `to` "csv", "parquet", "tensorboard", "wandb", "mlflow" or "trackio" in
        a `folder` up to date, and return for each trial that has begun how it was brought there."""
        from detslurm.sdk.export import export

        return export([self], to, folder)

    def download_code(self, output_dir: Path | str = ".") -> Path:
        """Return the path of a new `experiment_<id>_model_def.tgz` with the experiment's code, in
        `output_dir` (by default the working directory).

        Raises `LifecycleError` if the submission broke off before the code was copied, the code is
        another user's alone, or the name is taken by a directory or another user's link; `OSError`
        if it can't be written: an older file of that name is left as it was.
        """
        import tarfile

        from detslurm.sdk.whole_file import whole_file

        directory = self._snapshot.directory
        code, owner = directory.code, directory.foreign_owner()
        if not code.is_dir():
            raise LifecycleError(
                f"experiment {self.id} has no code: its submission was interrupted"
            )
        if owner is not None and not os.access(code, os.R_OK | os.X_OK):
            raise LifecycleError(f"the code of experiment {self.id} is {owner}'s alone")
        target = Path(output_dir) / f"experiment_{self.id}_model_def.tgz"
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            whole_file(target) as draft,
            draft.open("wb") as file,
            tarfile.open(target, "w:gz", fileobj=file) as archive,
        ):
            archive.add(code, arcname=".")
        return target
