"""The experiments of a store for a program that stays open, read on where something is new."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from detslurm.sdk.experiments.listing import read_all
from detslurm.sdk.experiments.reconcile import attach_job_status
from detslurm.sdk.experiments.snapshot import ExperimentSnapshot, read
from detslurm.sdk.jobs.paced_queues import PacedQueues
from detslurm.store import Catalog, ExperimentRow, NotFound, fs, is_final
from detslurm.store.reading import started_trials

if TYPE_CHECKING:
    from detslurm.sdk.client import Client
    from detslurm.sdk.jobs.queues import Clock

Signature = tuple[float | None, int | None]

_MOST_FINISHED: Final = 20


class StoreReader:
    """All experiments of a store; a poll costs a few file names while nothing changes.

    It reads the tail of the ledger, news of the experiments that are asked for, and in turn news of
    one of the other unfinished ones. The queue is listed every half minute at most.

    Args:
        client: The client of the store, which gets the paced queues.
        clock: Gives seconds that never go back.
        keeps_logs: Whether the logs of trials that are over are read once only; off by default.
    """

    def __init__(
        self, client: Client, clock: Clock = time.monotonic, *, keeps_logs: bool = False
    ) -> None:
        self._client, self._keeps_logs = client, keeps_logs
        self.queues = PacedQueues(client.queues.cluster, self._warn, clock)
        client.queues = self.queues
        self._catalog: Catalog | None = None
        self._rows: dict[int, ExperimentRow] = {}  # of those that are over, by their ids
        self._open: dict[int, ExperimentSnapshot] = {}
        self._finished: dict[int, ExperimentSnapshot] = {}  # those that were asked for last
        self._signatures: dict[int, Signature] = {}
        self._created: float | None = None  # the ledger
        self._unread: set[int] = set()  # to be tried again: a submission is under way, or a fault
        self._turn = 0
        self._problems: dict[int, str] = {}
        self._warnings: list[str] = []
        self.incarnation = 0
        """Counts how often all was read anew: earlier reads of trials are then of others."""

    def _warn(self, text: str) -> None:
        self._warnings.append(text)

    @property
    def unfinished(self) -> list[ExperimentSnapshot]:
        """Those that are not over."""
        return list(self._open.values())

    @property
    def problems(self) -> list[str]:
        """Why experiments can't be read, and warnings of the last answer of the queue."""
        broken = self._catalog.problems if self._catalog is not None else []
        return [*broken, *self._problems.values(), *dict.fromkeys(self._warnings)]

    def rows(self, *, archived: bool = False) -> Iterator[ExperimentRow]:
        """All experiments in short, newest first, with `archived` ones on request; deleted ones and
        tasks are left out."""
        for number in sorted(self._rows.keys() | self._open.keys(), reverse=True):
            row = self._open[number].row if number in self._open else self._rows[number]
            is_there = row.state != "DELETED" and (archived or not row.archived)
            if is_there and row.task is None:
                yield row

    def experiment(self, number: int) -> ExperimentSnapshot:
        """All of one experiment. Raises StoreError."""
        if number in self._open:
            return self._open[number]
        if number not in self._finished:
            found = read(self._client.directory(number), keeps_logs=self._keeps_logs)
            if found.facts.desired.deleted:
                raise NotFound(f"experiment {number} was deleted")
            while len(self._finished) >= _MOST_FINISHED:
                del self._finished[next(iter(self._finished))]
            self._finished[number] = found
        return self._finished[number]

    def poll(self, wanted: Collection[int] | None) -> bool:
        """Return whether anything has changed; the experiments `wanted` are read each time, all for
        None. Raises `StoreError` if there is no store, or it can't be read."""
        changed = self._find_experiments()
        for number in self._in_turn(wanted):
            changed |= self._read_on(self._open[number])
            self._settle({number} & self._open.keys())
        if self.queues.due:
            self._warnings.clear()
            self._attach(self._open)
        return changed

    def forget_logs(self, most: int, wanted: Collection[int] = ()) -> None:
        """Forget kept logs of more trials than `most`, but not of the experiments `wanted`."""
        known = [*self._open.values(), *self._finished.values()]
        others = [one for one in known if one.directory.id not in wanted]
        if sum(len(one.logs) for one in others) > most:
            for one in others:
                one.logs.clear()

    def _attach(self, numbers: Collection[int]) -> None:
        """Add what the queue knows of the unfinished trials of these experiments."""
        attach_job_status([self._open[number] for number in numbers], self.queues)
        self._settle(list(numbers))

    # -- experiments -------------------------------------------------------------------------------

    def _find_experiments(self) -> bool:
        if text := self._client.missing():
            self._catalog = None
            raise NotFound(text)  # old rows stay on the screen until there is a store again
        if self._catalog is None or self._is_replaced():
            self._read_all()
            return True
        news = self._catalog.catch_up()
        for number in news:
            self._rows.pop(number, None)
            self._finished.pop(number, None)
        return self._read(sorted(news | self._unread))

    def _read_all(self) -> None:
        for known in (self._open, self._finished, self._signatures, self._problems):
            known.clear()
        self._is_replaced()
        self.incarnation += 1
        catalog = self._client.store.catalog()
        listed = catalog.newest_first()
        self._rows = {one.id: one for one in listed if not isinstance(one, int)}
        self._catalog = catalog
        self._read(catalog.unfinished)

    def _is_replaced(self) -> bool:
        """Whether this is another store than before, in which other experiments have the same ids.
        The first fact of a ledger never changes."""
        known, created = self._created, fs.modified(self._client.store.ledger.log.name(1))
        self._created = created if created is not None else known  # None while it can't be read
        return known is not None and known != self._created

    def _read(self, numbers: list[int]) -> bool:
        self._unread = set()
        store = self._client.store
        for number, found in read_all(store, numbers, keeps_logs=self._keeps_logs):
            self._problems.pop(number, None)
            if isinstance(found, ExperimentSnapshot):
                self._open[number] = found
                continue
            self._unread.add(number)
            # The ledger names an experiment before its first fact is there.
            if not isinstance(found, NotFound):
                self._problems[number] = f"experiment {number} can't be read: {found}"
        news = self._open.keys() & {*numbers} - self._unread
        self._settle(news)
        if not self.queues.due:
            self._attach(news & self._open.keys())  # from memory
        return bool(news)

    def _settle(self, numbers: Collection[int]) -> None:
        """Keep only the rows of ended experiments."""
        rows = [self._open[number].row for number in numbers]
        ended = [row for row in rows if is_final(row)]
        for row in ended:
            self._rows[row.id] = row
            del self._open[row.id]
            self._finished.pop(row.id, None)
        if ended and self._catalog is not None:
            self._catalog.settle(ended)

    def _in_turn(self, wanted: Collection[int] | None) -> list[int]:
        if wanted is None:
            return list(self._open)
        others = sorted(self._open.keys() - {*wanted})
        found = [number for number in wanted if number in self._open]
        if others:
            self._turn = (self._turn + 1) % len(others)
            found.append(others[self._turn])
        return found

    # -- one experiment ----------------------------------------------------------------------------

    def _read_on(self, one: ExperimentSnapshot) -> bool:
        if next(one.directory.facts(one.facts.count), None):
            one.refresh()
            if not self.queues.due:
                self._attach([one.directory.id])  # from memory: it may have other jobs now
            return True
        moved = self._search_moved(one)
        if moved:
            one.follow_search()
        news = [trial for trial in _may_have_news(one) if self._moved(one, trial)]
        for trial in news:
            one.read_trial(trial)
        return moved or bool(news)

    def _search_moved(self, one: ExperimentSnapshot) -> bool:
        if not one.facts.searching:
            return False
        return self._is_new(-one.directory.id, (fs.modified(one.directory.search), None))

    def _moved(self, one: ExperimentSnapshot, trial: int) -> bool:
        """Whether a run has begun or ended, or written anything."""
        known, place = one.trials.get(trial), one.directory.trial(trial)
        run = 0 if known is None else known.run_count
        size = fs.size_of(place.records_path(run)) if run else None
        return self._is_new(trial, (fs.modified(place.path), size))

    def _is_new(self, key: int, signature: Signature) -> bool:
        known, self._signatures[key] = self._signatures.get(key), signature
        return known != signature


def _may_have_news(one: ExperimentSnapshot) -> list[int]:
    """Trials that run or may have begun by now, without those that wait in the queue, in their
    search, or for their submission. Where they are many, listings show which have begun."""
    if one.facts.searching:
        running = {row.id for row in one.trials.values() if row.state == "RUNNING"}
        return [trial for trial in running | one.job_refs.keys() if not _waits(one, trial)]
    deferred = {one.facts.trial_ids[index] for index in one.facts.deferred}
    rows = [one.trials[trial] for trial in one.unfinished if not _waits(one, trial)]
    new = [row.id for row in rows if not row.run_count and row.id not in deferred]
    started = started_trials(one.directory, one.facts, len(new))
    begun = [row.id for row in rows if row.run_count]
    return [*begun, *(trial for trial in new if started is None or trial in started)]


def _waits(one: ExperimentSnapshot, trial: int) -> bool:
    status = one.job_statuses.get(trial)
    return status is not None and status.waits
