"""Run a custom search method: on the user's own machine, or inside an experiment of one slot."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from detslurm.sdk.client import Client
from detslurm.sdk.jobs.queues import Queues, connector
from detslurm.sdk.searches.driver import SavedMethod, SearchDriver, load, save
from detslurm.sdk.searches.method_storage import (
    CheckpointStorage,
    DirectoryStorage,
    MethodStorage,
)
from detslurm.sdk.searches.worker_pool import WorkerPool
from detslurm.sdk.submitting import Config
from detslurm.searcher.custom_method import SearcherState, SearchMethod
from detslurm.store import ExperimentDir, NotFound, Store, fold_facts, fs

logger = logging.getLogger("detslurm.searcher")

Paths = Iterable[str | os.PathLike[str]]

_MARK_FILE = "submission"
# Seconds between two checks of the preemption flag.
_FLAG_POLL_SECONDS = 0.25


class SubmissionMark(NamedTuple):
    """By which an interrupted submission is found again; its experiment's id is above `after`."""

    text: str
    after: int


class SearchRunner:
    """The common part of both runners of custom search methods: they run a `search_method`, and
    `state` is its knowledge of its search."""

    def __init__(self, search_method: SearchMethod) -> None:
        self.search_method = search_method
        self.state = SearcherState()

    def _drive(self, experiment: ExperimentDir, storage: MethodStorage, **options: Any) -> int:
        """Run the method until the search ends or has to stop; returns the experiment's id."""
        method = self.search_method
        saved = load(method, storage) or SavedMethod(self.state, experiment.id, [])
        if saved.experiment_id != experiment.id:
            raise RuntimeError(
                f"the method was saved for experiment {saved.experiment_id}, not {experiment.id}"
            )
        self.state = saved.state
        queues = Queues(connector(experiment.store.path), _warn)
        workers = WorkerPool(experiment, queues)
        SearchDriver(method, saved, experiment, storage, workers, **options).run()
        return experiment.id


class LocalSearchRunner(SearchRunner):
    """Run a `search_method` in this process, on any machine that sees the store and the queue.

    The state of the search is kept in `searcher_dir`, by default the working directory: started
    with the same directory, a runner that was killed continues the same search. It is a
    `FileExistsError` if that is a file. While the store is full or away, the runner waits for it.
    """

    def __init__(self, search_method: SearchMethod, searcher_dir: Path | str | None = None) -> None:
        super().__init__(search_method)
        self._folder = Path(searcher_dir) if searcher_dir is not None else Path.cwd()
        if self._folder.exists() and not self._folder.is_dir():
            raise FileExistsError(f"searcher_dir {self._folder} is a file, not a directory")
        self._folder.mkdir(parents=True, exist_ok=True)

    def run(
        self, exp_config: Config, model_dir: str | None = None, includes: Paths | None = None
    ) -> int:
        """Submit the experiment, or continue it, until its search is over; return its id.

        `exp_config` is a mapping, or the path of a YAML file, `model_dir` the directory of code
        (by default the working directory), `includes` are more files and directories to ship (none
        by default). Errors are as in `Client.submit`; it is a `RuntimeError` if the method was
        saved for another experiment.
        """
        store = Store.open()
        experiment = self._known(store)
        if experiment is None:
            mark = self._mark(store)
            experiment = submit_once(store, "auto", mark, exp_config, model_dir, includes)
        if fold_facts(experiment).closed is not None:
            logger.warning(
                "the search of experiment %s is over, and the configuration given now has no"
                " effect: another one begins in another searcher_dir than %s",
                experiment.id,
                self._folder,
            )
        logger.info("searching in experiment %s", experiment.id)
        folder = self._folder / f"exp_{experiment.id}"
        folder.mkdir(exist_ok=True)
        return self._drive(experiment, DirectoryStorage(folder), waits_for_store=True)

    def continue_(self, overrides: Sequence[str] = ()) -> int:
        """Go on with the search of `searcher_dir`, which has ended, in a new experiment, until that
        is over; return the new experiment's id.

        The method consents with its `on_search_extended()`. A runner that was killed meanwhile
        continues the same search by `run()`, or by this if it has not logged that it is searching.
        `overrides` are changes of the configuration, each as `a.b=YAML`, by default none. It is a
        `RuntimeError` if the method does not consent, or there is no search.
        """
        method = self.search_method
        if type(method).on_search_extended is SearchMethod.on_search_extended:
            raise RuntimeError(
                f"{type(method).__name__} has no on_search_extended(): its search does not go on"
                " once it has ended"
            )
        store = Store.open()
        if (parent := self._known(store)) is None:
            raise RuntimeError(f"{self._folder} has no search to go on with: run() begins one")
        before = DirectoryStorage(self._folder / f"exp_{parent.id}")
        saved = load(method, before) or SavedMethod(self.state, parent.id, [])
        mark = self._mark(store, f"{_MARK_FILE}_{parent.id}")
        if (experiment := _find_marked(store, mark)) is None:
            known = Client(store.path, warn=_warn).experiment(parent.id)
            done = known.continue_(overrides, method_runner=mark.text)
            experiment = store.experiment(done.id)
        storage = DirectoryStorage(self._folder / f"exp_{experiment.id}")
        saved.experiment_id = experiment.id
        save(method, saved, storage)
        logger.info("searching in experiment %s", experiment.id)
        return self._drive(experiment, storage, waits_for_store=True)

    def _known(self, store: Store) -> ExperimentDir | None:
        names = [path.name.removeprefix("exp_") for path in self._folder.glob("exp_*")]
        numbers = sorted(int(name) for name in names if name.isdigit())
        return store.experiment(numbers[-1]) if numbers else None

    def _mark(self, store: Store, name: str = _MARK_FILE) -> SubmissionMark:
        """The mark of our submission, which is created the first time."""
        path = self._folder / name
        if not path.exists():
            last = next(store.newest_first(), 0)
            fs.put_if_absent(path, f"{uuid.uuid4()} {last}\n".encode())  # a kill leaves no half
        text, _, last_known = path.read_text().strip().partition(" ")
        return SubmissionMark(text, int(last_known or 0))


class RemoteSearchRunner(SearchRunner):
    """Run a `search_method` inside an experiment of its own, whose `context` is the result of
    `core.init()`.

    The method is kept in that experiment's checkpoints, so that it continues after a preemption or
    a crash. It is a `RuntimeError` if this process is not part of an experiment.
    """

    def __init__(self, search_method: SearchMethod, context: Any) -> None:
        super().__init__(search_method)
        self._context = context
        if context.info is None:
            raise RuntimeError("RemoteSearchRunner runs inside an experiment; elsewhere there is "
                               "LocalSearchRunner")  # fmt: skip

    def run(
        self, exp_config: Config, model_dir: str | None = None, includes: Paths | None = None
    ) -> int:
        """Return the experiment's id when its search is over or this run has to exit. The arguments
        and errors are as in `LocalSearchRunner.run`."""
        info = self._context.info
        store = Store.open(info.master_url.removeprefix("file://"))
        mark = SubmissionMark(f"trial {info.trial.trial_id}", info.trial.experiment_id)
        experiment = submit_once(store, info.cluster_id, mark, exp_config, model_dir, includes)
        return self._drive(
            experiment,
            CheckpointStorage(self._context),
            should_stop=self._context.preempt.should_preempt,
            report_progress=self._context.train.report_progress,
            sleep=self._rest,
        )

    def _rest(self, seconds: float) -> None:
        # Slurm's grace time may be shorter than the pause between two readings of the search.
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._context.preempt.should_preempt():
            time.sleep(min(left, _FLAG_POLL_SECONDS))


def submit_once(
    store: Store,
    cluster: str,
    mark: SubmissionMark,
    exp_config: Config,
    model_dir: str | None,
    includes: Paths | None,
) -> ExperimentDir:
    """The experiment that was submitted with this mark; submits it where there is none."""
    if (known := _find_marked(store, mark)) is not None:
        return known
    done = Client(store.path, warn=_warn).submit(
        exp_config,
        model_dir if model_dir is not None else ".",
        includes=includes or (),
        cluster=cluster,
        method_runner=mark.text,
    )
    return store.experiment(done.id)


def _warn(text: str) -> None:
    logger.warning("%s", text)


def _find_marked(store: Store, mark: SubmissionMark) -> ExperimentDir | None:
    # Ids only grow: whatever is older than the mark can't bear it.
    for number in takewhile(lambda number: number > mark.after, store.newest_first()):
        try:
            experiment = store.experiment(number)
        except NotFound:
            continue
        if experiment.created().runner == mark.text and not fold_facts(experiment).desired.deleted:
            return experiment
    return None
