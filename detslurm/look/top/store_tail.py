"""The experiments of a store, read on where something is new."""

from __future__ import annotations

from collections.abc import Iterator

from detslurm.sdk.client import Client
from detslurm.sdk.experiments.reconcile import attach_job_status
from detslurm.sdk.experiments.snapshot import ExperimentSnapshot, read
from detslurm.store import ExperimentDir, ExperimentRow, NotFound, StoreError, fs
from detslurm.store.index import Catalog
from detslurm.store.reading import started_trials

Signature = tuple[float | None, int | None]


class StoreTail:
    """All experiments; a look costs a few file names while nothing changes.

    It reads the tail of the ledger, news of the experiment that is looked at, and in turn news of
    one of the other unfinished ones.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._catalog: Catalog | None = None
        self._rows: dict[int, ExperimentRow] = {}  # of those that are over, by their ids
        self._open: dict[int, ExperimentSnapshot] = {}
        self._finished: dict[int, ExperimentSnapshot] = {}  # the experiment on the screen
        self._signatures: dict[int, Signature] = {}
        self._created: dict[int, float | None] = {}
        self._uncreated: set[int] = set()  # a submission is under way, or was interrupted
        self._turn = 0
        self.incarnation = 0
        """Counts how often all was read anew: earlier reads of trials are then of others."""
        self.problems: dict[int, str] = {}
        """Why experiments can't be read, by id."""

    @property
    def unfinished(self) -> list[ExperimentSnapshot]:
        """Those that are not over."""
        return list(self._open.values())

    def rows(self) -> Iterator[ExperimentRow]:
        """All experiments in short, newest first; those put away or deleted are left out."""
        for number in sorted(self._rows.keys() | self._open.keys(), reverse=True):
            row = self._open[number].row if number in self._open else self._rows[number]
            if row.state != "DELETED" and not row.archived:
                yield row

    def experiment(self, number: int) -> ExperimentSnapshot:
        """All of one experiment. Raises StoreError."""
        if number in self._open:
            return self._open[number]
        if number not in self._finished:
            self._finished = {number: read(self._client.directory(number))}
        return self._finished[number]

    def poll(self, chosen: int | None) -> bool:
        """Read new facts; `chosen` is looked at each time.

        Returns:
            Whether anything has changed.

        Raises:
            StoreError: If there is no store, or it can't be read.
        """
        changed = self._look_for_experiments()
        if chosen is not None and self._is_replaced(chosen):
            self._catalog = None
            return self._look_for_experiments()
        for number in self._in_turn(chosen):
            changed |= self._look_at(self._open[number])
            self._settle(number)
        return changed

    def ask_queue(self) -> None:
        """Add what the queue knows of all trials that are unfinished."""
        attach_job_status(self.unfinished, self._client.queues)
        for number in list(self._open):
            self._settle(number)

    # -- experiments -------------------------------------------------------------------------------

    def _look_for_experiments(self) -> bool:
        if text := self._client.missing():
            self._catalog = None
            raise NotFound(text)  # old rows stay on the screen until there is a store again
        if self._catalog is None:
            self._open.clear()
            self._finished.clear()
            self._signatures.clear()
            self._created.clear()
            self.problems.clear()
            self.incarnation += 1
            catalog = self._client.store.catalog()
            listed = catalog.newest_first()
            self._rows = {one.id: one for one in listed if not isinstance(one, int)}
            self._catalog = catalog
            self._read(catalog.unfinished)
            return True
        news = self._catalog.catch_up()
        for number in news:
            self._rows.pop(number, None)
            self._finished.pop(number, None)
        return self._read(sorted(news | self._uncreated))

    def _is_replaced(self, number: int) -> bool:
        """Whether another experiment has this id than before: in a store that was made anew.

        Its first fact never changes.
        """
        created = fs.modified(ExperimentDir(self._client.store, number).log.name(1))
        # Nothing is known while it can't be looked at.
        return created is not None and created != self._created.setdefault(number, created)

    def _read(self, numbers: list[int]) -> bool:
        self._uncreated = set()
        for number in numbers:
            try:
                self._open[number] = read(self._client.store.experiment(number))
                self.problems.pop(number, None)
            except NotFound:  # the ledger names an experiment before its first fact is there
                self._uncreated.add(number)
            except StoreError as error:
                self.problems[number] = str(error)
            self._settle(number)
        return len(self._uncreated) < len(numbers)

    def _settle(self, number: int) -> None:
        """Keep only the row of an ended experiment."""
        one = self._open.get(number)
        if one is not None and one.row.finished:
            self._rows[number] = one.row
            del self._open[number]
            self._finished.pop(number, None)

    def _in_turn(self, chosen: int | None) -> list[int]:
        others = sorted(self._open.keys() - {chosen})
        found = [chosen] if chosen in self._open else []
        if others:
            self._turn = (self._turn + 1) % len(others)
            found.append(others[self._turn])
        return [number for number in found if number is not None]

    # -- one experiment ----------------------------------------------------------------------------

    def _look_at(self, one: ExperimentSnapshot) -> bool:
        if next(one.directory.facts(one.facts.count), None):
            one.refresh()
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
    """Trials that run, and those that may have begun by now.

    Trials that wait are left out: in the queue (as far as it has answered), in their search, or for
    their submission. Of the others listings show which have begun where these are many.
    """
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
