"""The way into a store from Python: experiments and trials by id, and lists of them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from detslurm.sdk.queues import Connect, Queues, connector
from detslurm.sdk.snapshot import ExperimentSnapshot, attach_job_status, read
from detslurm.store import ExperimentDir, ExperimentRow, NotFound, Store, StoreError, TrialDir, fs

if TYPE_CHECKING:
    from detslurm.sdk.experiment import Experiment
    from detslurm.sdk.trial import Trial


def warn_user(text: str) -> None:
    """Issue a Python warning; how a `Client` reports what is not an error, by default.

    Args:
        text: What the user should know.
    """
    warnings.warn(text, stacklevel=2)


def default_root() -> Path:
    """Return the directory of the store that commands and clients use by default.

    That is DETSLURM_ROOT, else `root` of the site profile, else `~/detslurm`.
    """
    named = os.environ.get("DETSLURM_ROOT")
    if named and not named.startswith("~") and "$" not in named:
        return Path(named).absolute()
    from detslurm.config import store_root

    return store_root()


DEFAULT_ORIGIN = "the default"


def root_origin() -> str:
    """Return who decided where `default_root` is, as a phrase for messages."""
    if os.environ.get("DETSLURM_ROOT"):
        return "by DETSLURM_ROOT"
    from detslurm.config import load_site

    site = load_site()
    return f"by root in {site.source}" if site.root else DEFAULT_ORIGIN


class Client:
    """A store, and the clusters whose queues know its jobs.

    Args:
        root: The directory of the store; by default the one that the commands use. It need not
            exist: the first submission makes it.
        warn: Gets a sentence for everything that the user should know and that is not an error,
            such as a queue that does not answer. By default it becomes a Python warning.
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
        # Looking never creates anything: the store is made by the first submission.
        self.store = Store(path)
        self.warn = warn
        self.queues = Queues(connect or connector(path), warn)

    def missing(self) -> str | None:
        """Return why there is no store, in a sentence that names the directory and who chose it.

        None if there is a store.
        """
        path = self.store.path
        if fs.exists(path / "experiments", expected=True):
            return None
        origin = "as was asked for" if self._given else root_origin()
        if fs.exists(path) and not path.is_dir():
            return f"{path} ({origin}) is a file, not a store"
        return f"there is no store at {path} ({origin}); the first submission makes one"

    def directory(self, experiment_id: int) -> ExperimentDir:
        """Return the directory of an experiment in the store; a deleted one still has it.

        Args:
            experiment_id: The experiment's id.

        Raises:
            NotFound: If there is no such experiment, or no store.
        """
        if text := self.missing():
            raise NotFound(text)
        return self.store.experiment(experiment_id)

    def experiment(self, experiment_id: int) -> Experiment:
        """Return an experiment as it is now, by the store and the queue.

        Args:
            experiment_id: The experiment's id.

        Raises:
            NotFound: If there is no such experiment, or it was deleted.
            StoreError: If it can't be read.

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
        self, ids: Iterable[int], *, skip: Callable[[StoreError], None] | None = None
    ) -> list[Experiment]:
        """Return several experiments as they are now, with one query of the queue for all of them.

        Args:
            ids: The experiments' ids.
            skip: Gets the error for each experiment that does not exist or can't be read, which is
                then left out. By default such an error is raised.

        Raises:
            NotFound: If one does not exist or was deleted, and `skip` is not given.
            StoreError: If one can't be read, and `skip` is not given.
        """
        from detslurm.sdk.experiment import Experiment

        found = []
        for number in ids:
            try:
                found.append(self._read(number))
            except StoreError as error:
                if skip is None:
                    raise
                skip(error)
        attach_job_status(found, self.queues)
        return [Experiment(self, one) for one in found]

    def _read(self, number: int) -> ExperimentSnapshot:
        one = read(self.directory(number))
        if one.facts.desired.deleted:
            raise NotFound(f"experiment {number} was deleted")
        return one

    def stored(self, experiment_id: int, *, deleted: bool = False) -> Experiment:
        """Return an experiment as the store alone knows it, without a query of the queue.

        That is enough to change it, and much faster.

        Args:
            experiment_id: The experiment's id.
            deleted: Whether to return a deleted experiment, too; off by default.

        Raises:
            NotFound: If there is no such experiment, or it was deleted.
            StoreError: If it can't be read.
        """
        from detslurm.sdk.experiment import Experiment

        one = read(self.directory(experiment_id))
        if one.facts.desired.deleted and not deleted:
            raise NotFound(f"experiment {experiment_id} was deleted")
        return Experiment(self, one)

    def list_experiments(self, *, archived: bool = False) -> list[ExperimentRow]:
        """Return a row for each experiment, by id; deleted ones are left out.

        Experiments that can't be read are left out, with a warning.

        Args:
            archived: Whether to include archived experiments; off by default.

        Raises:
            NotFound: If there is no store where the user said it is.
        """
        if text := self.missing():
            if self._given or root_origin() != DEFAULT_ORIGIN:
                raise NotFound(text)
            self.warn(text)  # nobody said that there is one
        found = _rows(self.store, self.queues, self.warn)
        return [row for row in found if row.state != "DELETED" and (archived or not row.archived)]

    def trial(self, trial_id: int) -> Trial:
        """Return a trial as it is now, by the store and the queue.

        Args:
            trial_id: The trial's id.

        Raises:
            NotFound: If there is no such trial.
            StoreError: If its experiment can't be read.
        """
        from detslurm.sdk.trial import Trial

        directory = self._trial(trial_id)
        return Trial(self.experiment(directory.experiment_id), trial_id)

    def stored_trial(self, trial_id: int) -> Trial:
        """Return a trial as the store alone knows it, without a query of the queue.

        Args:
            trial_id: The trial's id.

        Raises:
            NotFound: If there is no such trial.
            StoreError: If its experiment can't be read.
        """
        from detslurm.sdk.trial import Trial

        directory = self._trial(trial_id)
        return Trial(self.stored(directory.experiment_id), trial_id)

    def _trial(self, trial_id: int) -> TrialDir:
        if text := self.missing():
            raise NotFound(text)
        return self.store.find_trial(trial_id)


def _rows(store: Store, queues: Queues, warn: Callable[[str], None]) -> list[ExperimentRow]:
    """Rows of all experiments, ascending; one look at the queue for all that are unfinished.

    What can't be read is left out, and said.
    """
    from detslurm.store.index import Catalog

    catalog = Catalog(store)
    for problem in catalog.problems:
        warn(f"left out: {problem}")
    open_ones = list(_readable(store, catalog.unfinished, warn))
    attach_job_status(open_ones, queues)
    fresh = [one.view.row() for one in open_ones]
    catalog.settle(fresh)
    return sorted({**catalog.finished, **{r.id: r for r in fresh}}.values(), key=lambda r: r.id)


def _readable(
    store: Store, ids: Iterable[int], warn: Callable[[str], None]
) -> Iterator[ExperimentSnapshot]:
    """Those that exist, for their submission came so far, and can be read."""
    unreadable: dict[int, StoreError] = {}
    for number in ids:
        try:
            yield read(store.experiment(number))
        except NotFound:
            continue
        except StoreError as error:
            unreadable[number] = error
    if unreadable:
        more = ", ..." if len(unreadable) > 10 else ""
        names = ", ".join(map(str, list(unreadable)[:10])) + more
        first = next(iter(unreadable.values()))
        warn(f"left out, for they can't be read: experiment {names} ({first})")
