"""Garbage collection of checkpoints by an experiment's own workers.

Each fact is a file that all readers of the experiment read. So the number of collections is bounded
and doesn't grow with the number of checkpoints.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final

from detslurm._base.quantities import counted, human_size
from detslurm.exec.text_log import print_message
from detslurm.store import ExperimentDir

if TYPE_CHECKING:
    from detslurm.config.run_config import RunConfig
    from detslurm.searcher import State
    from detslurm.storage import Storages
    from detslurm.store import EventLog
    from detslurm.store.gc import Collector

# In an experiment of more trials only some of their ends make a worker look at all of them.
PASSES: Final = 32
# Seconds between two collections while a trial runs; with more trials than these it is longer.
INTERVAL: Final = 600.0
_SIDE_BY_SIDE: Final = 8
_ROOM_SECONDS: Final = 10.0


class CheckpointCollection:
    """Deletes checkpoints by the experiment's policy; a failure costs disk space only."""

    def __init__(
        self, experiment: ExperimentDir, config: RunConfig, interval: float = INTERVAL
    ) -> None:
        self._experiment, self._config, self._interval = experiment, config, interval
        # The thread of a finished trial may still collect while the next trial wants to begin.
        # They share the collector and the search's log.
        self._turn = threading.Lock()

    @contextmanager
    def watching(self, trial_id: int, trials: int) -> Iterator[None]:
        """Collect a trial's checkpoints at intervals, for as long as the body runs."""
        done = threading.Event()
        pause = self._interval * max(1.0, trials / _SIDE_BY_SIDE)

        def work() -> None:
            while not done.wait(pause):
                self.collect(trial_id)

        # A daemon: the runner ends without it. Cut off anywhere, it leaves the same as a crash:
        # files of checkpoints that are recorded as deleted.
        threading.Thread(target=work, daemon=True).start()
        try:
            yield
        finally:
            done.set()  # not joined: it may take minutes, which an ending job doesn't have

    def after_trial(self, index: int, trial_id: int, trials: int, *, is_last: bool) -> None:
        """Collect when a trial has ended: its own checkpoints, or those of all trials."""
        if is_last or (trials > PASSES and index % -(-trials // PASSES) == 0):
            self.collect()
        elif trials <= PASSES:
            several = self._config.plain["searcher"].get("metrics")
            ranks_all = several or self._config.checkpoint_storage.get("save_experiment_best")
            self.collect(None if ranks_all else trial_id)

    def before_restart(self, trial_id: int) -> None:
        """Make room for a run that begins after a failure: a full disk may have been its cause.

        A long collection continues in the background, because signals are not read meanwhile.
        """
        room = threading.Thread(target=self.collect, args=(trial_id,), daemon=True)
        room.start()
        room.join(_ROOM_SECONDS)

    def collect(self, trial_id: int | None = None) -> None:
        """Collect the checkpoints of one trial, or of all trials; print the deletions."""
        try:
            with self._turn:
                self._collect_now(trial_id)
        except Exception as error:  # a disk, a cloud or a library: no trial fails for that
            print_message(f"checkpoints are not collected: {error}")

    def _collect_now(self, trial_id: int | None) -> None:
        done = self._collector.collect(trial_id)
        for problem in done.problems:
            print_message(f"warning: {problem}")
        if done.deleted:
            gone = f"{counted(len(done.deleted), 'checkpoint')}, {human_size(done.freed)}"
            print_message(f"garbage collection: {gone}")
        if trial_id is None or len(self._collector.facts.trial_ids) <= PASSES:
            self._correct_links()

    def _correct_links(self) -> None:
        from detslurm.storage import SharedFS
        from detslurm.store import correct_links

        storage = self._storages.of(None)
        if isinstance(storage, SharedFS) and self._storages.reachable(None):
            correct_links(self._experiment, storage.base, self._collector.links)

    @cached_property
    def _collector(self) -> Collector:
        from detslurm.store.gc import Collector  # only here: runners start without it

        return Collector(self._experiment, self._storages, self._needed)

    @cached_property
    def _storages(self) -> Storages:
        from detslurm.storage import Storages

        return Storages(self._config.checkpoint_storage, self._experiment.store.path)

    def _needed(self) -> Collection[str]:
        if not self._collector.facts.searching:
            return ()
        return self._search_log.catch_up().needed_checkpoints()

    @cached_property
    def _search_log(self) -> EventLog[State]:
        from detslurm.searcher import Search
        from detslurm.store import EventLog

        return EventLog(self._experiment.search, Search(self._config.plain))
