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
    """How the SDK says what is no error, unless told otherwise."""
    warnings.warn(text, stacklevel=2)


def default_root() -> Path:
    """Where the store is; a site profile is read only where the environment leaves it open."""
    named = os.environ.get("DETSLURM_ROOT")
    if named and not named.startswith("~") and "$" not in named:
        return Path(named).absolute()
    from detslurm.config import store_root

    return store_root()


DEFAULT_ORIGIN = "the default"


def root_origin() -> str:
    """Who says where `default_root` is."""
    if os.environ.get("DETSLURM_ROOT"):
        return "by DETSLURM_ROOT"
    from detslurm.config import load_site

    site = load_site()
    return f"by root in {site.source}" if site.root else DEFAULT_ORIGIN


class Client:
    """A store and the clusters behind it."""

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
        """Where there should be a store and is none, and who says so; None where there is one."""
        path = self.store.path
        if fs.exists(path / "experiments", expected=True):
            return None
        origin = "as was asked for" if self._given else root_origin()
        if fs.exists(path) and not path.is_dir():
            return f"{path} ({origin}) is a file, not a store"
        return f"there is no store at {path} ({origin}); the first submission makes one"

    def directory(self, experiment_id: int) -> ExperimentDir:
        """The place of an experiment, or NotFound; a deleted one keeps its place."""
        if text := self.missing():
            raise NotFound(text)
        return self.store.experiment(experiment_id)

    def experiment(self, experiment_id: int) -> Experiment:
        """An experiment by id, as it stands now. Raises NotFound."""
        return self.experiments([experiment_id])[0]

    def experiments(
        self, ids: Iterable[int], *, skip: Callable[[StoreError], None] | None = None
    ) -> list[Experiment]:
        """Experiments by id, with one look at the queue for all of them.

        Raises NotFound for those that don't exist, StoreError for those that can't be read, unless
        `skip` takes the errors.
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
        """An experiment as the store alone knows it: enough to record an intent for it."""
        from detslurm.sdk.experiment import Experiment

        one = read(self.directory(experiment_id))
        if one.facts.desired.deleted and not deleted:
            raise NotFound(f"experiment {experiment_id} was deleted")
        return Experiment(self, one)

    def list_experiments(self, *, archived: bool = False) -> list[ExperimentRow]:
        """All experiments by id; archived ones on demand, deleted ones never."""
        if text := self.missing():
            if self._given or root_origin() != DEFAULT_ORIGIN:
                raise NotFound(text)
            self.warn(text)  # nobody said that there is one
        found = _rows(self.store, self.queues, self.warn)
        return [row for row in found if row.state != "DELETED" and (archived or not row.archived)]

    def trial(self, trial_id: int) -> Trial:
        """A trial by id, as it stands now. Raises NotFound."""
        from detslurm.sdk.trial import Trial

        directory = self._trial(trial_id)
        return Trial(self.experiment(directory.experiment_id), trial_id)

    def stored_trial(self, trial_id: int) -> Trial:
        """A trial as the store alone knows it: enough to record an intent for it."""
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
