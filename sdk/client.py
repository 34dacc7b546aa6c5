"""The way into a store from Python: experiments and trials by id, and lists of them.

Methods import the modules that do their work: lists and the queue load few of them (tests/perf).
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detslurm.sdk.checkpoints.finding import FindingCheckpoints
from detslurm.sdk.enums import ExperimentSortBy, ExperimentState, OrderBy
from detslurm.sdk.experiments.progress import Progress, silent
from detslurm.sdk.jobs.finding import ClientQueue
from detslurm.sdk.jobs.queues import Connect, Queues, connector
from detslurm.sdk.models.registry import Registry
from detslurm.sdk.store_root import DEFAULT_ORIGIN, default_root, root_origin
from detslurm.sdk.tasks.starting import Tasks
from detslurm.sdk.templates import Templates
from detslurm.store import ExperimentDir, NotFound, Store, StoreError, TrialDir, fs

if TYPE_CHECKING:
    from detslurm.sdk.costs.usage import By, UsageSum
    from detslurm.sdk.disk.gc import Collected
    from detslurm.sdk.disk.quota import Quota
    from detslurm.sdk.disk.usage import ExperimentUsage
    from detslurm.sdk.experiments.comparison import Comparison
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.experiments.snapshot import ExperimentSnapshot, Finished
    from detslurm.sdk.trials.trial import Trial
    from detslurm.store import ExperimentRow


def warn_user(text: str) -> None:
    """Issue a Python warning for the line that called detslurm; a `Client` reports `text` so."""
    level, frame = 1, sys._getframe()
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] == "detslurm":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


class Client(Tasks, Templates, FindingCheckpoints, ClientQueue, Registry):
    """A store, and the clusters whose queues know its jobs.

    The id of an experiment may also be its name, and each id `last`, or `@-2` for the second
    newest. A `cluster` is "slurm", "local" or "auto", the default: Slurm where it is set up.
    Methods raise `NotFound` for what does not exist or was deleted; `LifecycleError` for a name
    that several experiments have; `StoreError` for unreadable records; `SlurmError` for a cluster
    that does not answer.

    Args:
        root: The directory of the store, which the first submission makes; by default the
            commands' store.
        warn: Gets each message for the user that is no error; by default a Python warning.
        connect: Gets the name of a cluster and returns it; by default Slurm's commands, or the
            scheduler of this machine.
    """

    def __init__(
        self,
        root: os.PathLike[str] | str | None = None,
        *,
        warn: Callable[[str], None] = warn_user,
        connect: Connect | None = None,
    ) -> None:
        path = Path(root).expanduser().absolute() if root is not None else default_root()
        self._given = root is not None
        # Reading never creates anything: the first submission creates the store.
        self.store = Store(path)
        self.warn = warn
        self.progress: Progress = silent  # how a long reading is shown
        self.queues = Queues(connect or connector(path), warn)

    def __repr__(self) -> str:
        return f"Client({str(self.store.path)!r})"

    def missing(self) -> str | None:
        """Return why there is no store, as a sentence; None if there is a store."""
        path = self.store.path
        if fs.exists(path / "experiments", expected=True):
            return None
        origin = "as given" if self._given else root_origin()
        if fs.exists(path) and not path.is_dir():
            return f"{path} ({origin}) is a file, not a store"
        return f"there is no store at {path} ({origin}); the first submission makes one"

    def directory(self, experiment_id: int | str) -> ExperimentDir:
        """Return the directory of the experiment `experiment_id`, also if it was deleted; it is a
        `NotFound` for an unknown experiment, a `ValueError` for an impossible id."""
        if text := self.missing():
            raise NotFound(text)
        return self.store.experiment(self._experiment_id(experiment_id))

    def experiment(self, experiment_id: int | str) -> Experiment:
        """Return the experiment `experiment_id` as it is now, by the store and the queue.

        Example:
            import detslurm as det
            from detslurm.sdk import Client

            with det.core.init() as core:  # by hand: recorded as experiment 1
                core.train.report_validation_metrics(1, {"loss": 0.5})
            experiment = Client().experiment(1)
            trial = experiment.first_trial()
            assert trial.metrics("validation").metrics == {"loss": [0.5]}
        """
        return self.experiments([experiment_id])[0]

    def experiments(
        self, ids: Iterable[int | str], *, skip: Callable[[StoreError], None] | None = None
    ) -> list[Experiment]:
        """Return the experiments `ids` as they are now, with one query of the queue. `skip` gets
        the error for each experiment that can't be read; by default such an error is raised."""
        from detslurm.sdk.experiments.experiment import Experiment
        from detslurm.sdk.experiments.reconcile import attach_job_status, snapshot_warnings

        found = []
        for number in ids:
            try:
                found.append(self._read(number))
            except StoreError as error:
                if skip is None:
                    raise
                skip(error)
        attach_job_status(found, self.queues)
        for text in snapshot_warnings(found):
            self.warn(text)
        return [Experiment(self.queues, one) for one in found]

    def _read(self, number: int | str) -> ExperimentSnapshot:
        from detslurm.sdk.experiments.snapshot import read

        one = read(self.directory(number))
        if one.facts.desired.deleted:
            raise NotFound(f"experiment {one.directory.id} was deleted")
        return one

    def stored(self, experiment_id: int | str, *, deleted: bool = False) -> Experiment:
        """Return the experiment `experiment_id` as the store alone knows it, which is faster. With
        `deleted` (off by default) a deleted experiment is no error `NotFound`."""
        from detslurm.sdk.experiments.experiment import Experiment
        from detslurm.sdk.experiments.snapshot import read

        one = read(self.directory(experiment_id))
        if one.facts.desired.deleted and not deleted:
            raise NotFound(f"experiment {one.directory.id} was deleted")
        return Experiment(self.queues, one)

    def rows(self, *, archived: bool = False) -> list[ExperimentRow]:
        """Return a row for each experiment and task, by id, without deleted ones; with `archived`
        (off by default) also archived ones. A warning names unreadable ones."""
        return list(self.newest_rows(archived=archived))[::-1]

    def newest_rows(
        self, *, archived: bool = False, count: int | None = None
    ) -> Iterator[ExperimentRow]:
        """Return the rows of `rows`, with the same `archived` (off by default), the newest first.
        Only about `count` of them (by default all) are read."""
        for one in self._newest_first(count):
            row = one.row
            if archived or not row.archived:
                yield row

    def _newest_first(self, count: int | None) -> Iterator[ExperimentSnapshot | Finished]:
        """The experiments that were not deleted."""
        from detslurm.sdk.experiments.listing import Listing

        if self._is_there():
            listing = Listing(self.store, self.queues, self.warn, self.progress)
            found = listing.newest_first(count)
            yield from (one for one in found if one.row.state != "DELETED")

    def list_experiments(
        self,
        sort_by: ExperimentSortBy = ExperimentSortBy.ID,
        order_by: OrderBy = OrderBy.ASCENDING,
        experiment_ids: Collection[int | str] | None = None,
        labels: Iterable[str] | None = None,
        users: Iterable[str] | None = None,
        states: Iterable[ExperimentState | str] | None = None,
        name: str | None = None,
    ) -> list[Experiment]:
        """Return the experiments that meet all conditions, archived ones included, without tasks.

        A warning names unreadable ones. It is a `TypeError` if labels, users or states are a text
        instead of a list of texts, a `ValueError` if a state is none.

        Args:
            sort_by: The value to sort by; ids by default.
            order_by: The direction; ascending by default.
            experiment_ids: Only those with these ids or names; all by default.
            labels: Only those with all of these labels; all by default.
            users: Only those that any of these users has submitted; all by default.
            states: Only those in any of these states; all by default.
            name: Only those with this text in their name, in any case; all by default.
        """
        from detslurm.sdk.experiments.experiment import Experiment
        from detslurm.sdk.experiments.ordering import experiments_by, selected

        found = {one.row.id: one for one in self._newest_first(None)}
        rows = selected(
            [one.row for one in reversed(found.values()) if one.row.task is None],
            ids=self._ids(experiment_ids), labels=labels, users=users, states=states, name=name,
        )  # fmt: skip

        def sizes() -> dict[int, list[int]]:
            from detslurm.sdk.checkpoints.catalog import saved_checkpoints

            saved = saved_checkpoints(self.store, self.warn, [row.id for row in rows])
            return {
                one.experiment: [c.size for c in one.rows if c.state != "DELETED"] for one in saved
            }

        rows = experiments_by(rows, sort_by, order_by, sizes=sizes)
        return [Experiment(self.queues, found[row.id]) for row in rows]

    def _is_there(self) -> bool:
        """Whether there is a store; raises `NotFound` unless it is the default store."""
        text = self.missing()
        if not text:
            return True
        if self._given or root_origin() != DEFAULT_ORIGIN:
            raise NotFound(text)
        self.warn(text)
        return False

    def disk_usage(
        self,
        experiment_ids: Sequence[int | str] | None = None,
        *,
        progress: Callable[[int, int], None] = lambda done, whole: None,
    ) -> list[ExperimentUsage]:
        """Return the disk usage in bytes of `experiment_ids` (by default all), by kind of file:
        checkpoints and code as recorded, other files by their present size. `progress` is called
        with the numbers of finished and of all experiments; by default unused."""
        from detslurm.sdk.disk.usage import usage_of_store

        rows = {row.id: row for row in self.rows(archived=True)}
        ids = self._ids(experiment_ids)
        wanted = list(rows) if ids is None else ids
        if missing := [number for number in wanted if number not in rows]:
            raise NotFound(f"there is no experiment {missing[0]} in {self.store.path}")
        found = []
        for one in usage_of_store(self.store, [rows[number] for number in wanted]):
            found.append(one)
            progress(len(found), len(wanted))
        return found

    def usage(self, by: By = "user", *, since: float | None = None) -> list[UsageSum]:
        """Return the use of slots: slot-hours, effective training time, energy and disk by group.

        Archived experiments and tasks count, deleted ones don't.

        Args:
            by: The groups: "user" (the default), "project", "experiment", "month" or "pool".
            since: Only experiments submitted since then, in seconds since 1970; all by default.

        Raises:
            ValueError: If there are no such groups.
        """
        from detslurm.sdk.costs.usage import BY, usage_by
        from detslurm.sdk.disk.usage import known_usage

        if by not in BY:
            raise ValueError(f"usage is known by {', '.join(BY)}, not by {by!r}")
        rows = [row for row in self.rows(archived=True) if (row.created or 0.0) >= (since or 0.0)]
        disk = {} if self.missing() else known_usage(self.store)
        return usage_by(rows, by, {number: one.total for number, one in disk.items()})

    def quotas(self) -> list[Quota]:
        """Return free space and quota where the store and its checkpoints are; None if unknown."""
        from detslurm.sdk.disk.quota import quota_of

        places = [self.store.path, self.store.path / "checkpoints"]
        found: dict[int, Path] = {}
        for place in places:
            if place.is_dir():
                found.setdefault(place.stat().st_dev, place)
        return list(map(quota_of, found.values()))

    def gc(
        self,
        experiment_ids: Sequence[int | str] | None = None,
        *,
        dry_run: bool = False,
        unrecorded: bool = False,
    ) -> Collected:
        """Delete checkpoints that no policy keeps, and the remains of crashes; return these. Files
        that may be in use stay.

        Args:
            experiment_ids: Only these experiments; by default all of the user's own.
            dry_run: Whether to delete nothing; off by default.
            unrecorded: Whether to delete also checkpoints that no record of the store names and
                that have not changed for a day; off by default. Only right where no other store
                uses the same checkpoint storage.
        """
        from detslurm.sdk.disk.gc import GarbageCollection

        if text := self.missing():
            raise NotFound(text)
        collection = GarbageCollection(self.store, self.warn, dry_run=dry_run)
        return collection.run(self._ids(experiment_ids), with_unrecorded=unrecorded)

    def trial(self, trial_id: int | str) -> Trial:
        """Return the trial `trial_id` as it is now, by the store and the queue."""
        from detslurm.sdk.trials.trial import Trial

        directory = self._trial(trial_id)
        return Trial(self.experiment(directory.experiment_id), directory.id)

    def stored_trial(self, trial_id: int | str) -> Trial:
        """Return the trial `trial_id` as the store alone knows it, without a query of the queue."""
        from detslurm.sdk.trials.trial import Trial

        directory = self._trial(trial_id)
        return Trial(self.stored(directory.experiment_id), directory.id)

    def compare(
        self, ids: Iterable[int | str], *, trials: bool = False, diff: bool = False
    ) -> Comparison:
        """Return the differences of two or more experiments `ids`, or of `trials` (off by default):
        configuration, code and results. With `diff` (off by default) the code is compared line by
        line. A warning names code that can't be read."""
        from detslurm.sdk.experiments import comparison

        if trials:
            chosen = [self.stored_trial(n) for n in ids]
            return comparison.compare_trials(chosen, diff=diff, warn=self.warn)
        return comparison.compare_experiments(self.experiments(ids), diff=diff, warn=self.warn)

    def _ids(self, words: Iterable[int | str] | None) -> list[int] | None:
        return None if words is None else [self._experiment_id(word) for word in words]

    def _experiment_id(self, word: int | str) -> int:
        from detslurm.sdk.experiments import finding

        return finding.experiment_of(self, word)

    def _trial(self, trial_id: int | str) -> TrialDir:
        from detslurm.sdk.experiments import finding

        if text := self.missing():
            raise NotFound(text)
        return self.store.find_trial(finding.trial_of(self, trial_id))
