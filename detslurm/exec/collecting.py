"""The garbage collection of checkpoints by an experiment's own workers.

Each fact is a file that all readers of the experiment read: so collections are bounded in number,
not by what is saved.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from detslurm._quantities import counted, human_size
from detslurm.exec.text_log import print_message
from detslurm.store import ExperimentDir

if TYPE_CHECKING:
    from detslurm.searcher import State
    from detslurm.storage import Storages
    from detslurm.store import EventLog
    from detslurm.store.collection import Collector

# In an experiment of more trials only some of their ends make a worker look at all of them.
PASSES: Final = 32
# Seconds between two collections while a trial runs; with more trials than these it is longer.
INTERVAL: Final = 600.0
_SIDE_BY_SIDE: Final = 8
_ROOM_SECONDS: Final = 10.0


class CheckpointCollection:
    """Deletes what the policy of the experiment does not keep; a failure costs disk space only."""

    def __init__(
        self, experiment: ExperimentDir, config: Mapping[str, Any], interval: float = INTERVAL
    ) -> None:
        self._experiment, self._config, self._interval = experiment, config, interval
        # The thread of a trial that is over may still be at it, while others want to begin: they
        # share the collector, and the search's log.
        self._turn = threading.Lock()

    @contextmanager
    def watching(self, trial_id: int, trials: int) -> Iterator[None]:
        """Collect now and then what a trial leaves behind, for as long as the body runs."""
        done = threading.Event()
        pause = self._interval * max(1.0, trials / _SIDE_BY_SIDE)

        def work() -> None:
            while not done.wait(pause):
                self._collect(trial_id)

        # A daemon: the runner ends without it. Cut off anywhere, it leaves what a crash leaves:
        # files of checkpoints that are recorded as deleted.
        threading.Thread(target=work, daemon=True).start()
        try:
            yield
        finally:
            done.set()  # what it is at may take minutes, which a job that is ending has not

    def after_trial(self, index: int, trial_id: int, trials: int, *, is_last: bool) -> None:
        """Collect when a trial has ended: what is its own, or what is anybody's."""
        if is_last or (trials > PASSES and index % -(-trials // PASSES) == 0):
            self._collect()
        elif trials <= PASSES:
            ranks_all = self._config["checkpoint_storage"].get("save_experiment_best")
            self._collect(None if ranks_all else trial_id)

    def after_experiment(self) -> None:
        """Collect what nobody has collected whose last trial has ended without its worker."""
        self._collect()

    def before_restart(self, trial_id: int) -> None:
        """Make room for a run that begins after a failure: a full disk may have been its cause.

        What takes longer goes on beside it: signals are not read meanwhile.
        """
        room = threading.Thread(target=self._collect, args=(trial_id,), daemon=True)
        room.start()
        room.join(_ROOM_SECONDS)

    def _collect(self, trial_id: int | None = None) -> None:
        try:
            with self._turn:
                self._collect_now(trial_id)
        except Exception as error:  # a disk, a cloud or a library: no trial fails for that
            print_message(f"checkpoints are not collected: {error}")

    def _collect_now(self, trial_id: int | None) -> None:
        found = self._collector.collect(trial_id)
        for problem in found.problems:
            print_message(f"warning: {problem}")
        if found.deleted:
            gone = f"{counted(len(found.deleted), 'checkpoint')}, {human_size(found.freed)}"
            print_message(f"garbage collection: {gone}")
        if trial_id is None or len(self._collector.facts.trial_ids) <= PASSES:
            self._keep_links_right()

    def _keep_links_right(self) -> None:
        """Let `best` and `latest` in the experiment's directory lead where they should."""
        from detslurm.storage import SharedFS
        from detslurm.store.checkpoint_links import keep_right

        storage = self._storages.of(None)
        if isinstance(storage, SharedFS) and self._storages.reachable(None):
            keep_right(self._experiment, storage.base, self._collector.links)

    @cached_property
    def _collector(self) -> Collector:
        from detslurm.store.collection import Collector  # only here: runners start without it

        return Collector(self._experiment, self._storages, self._needed)

    @cached_property
    def _storages(self) -> Storages:
        from detslurm.storage import Storages

        return Storages(self._config["checkpoint_storage"], self._experiment.store.path)

    def _needed(self) -> Collection[str]:
        if not self._collector.facts.searching:
            return ()
        return self._search_log.catch_up().needed_checkpoints()

    @cached_property
    def _search_log(self) -> EventLog[State]:
        from detslurm.searcher import Search
        from detslurm.store import EventLog

        return EventLog(self._experiment.search, Search(self._config))
