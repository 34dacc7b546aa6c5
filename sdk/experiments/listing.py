"""All experiments of a store, newest first, read as far as the caller wants them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from detslurm.sdk.experiments.progress import Progress, silent
from detslurm.sdk.experiments.reconcile import attach_job_status, snapshot_warnings
from detslurm.sdk.experiments.snapshot import ExperimentSnapshot, Finished, read
from detslurm.sdk.jobs.queues import Queues
from detslurm.store import ExperimentDir, NotFound, Store, StoreError, is_final

# So many are read, several at a time, before their rows are saved: a first listing that the user
# breaks off loses no more.
_GROUP: Final = 500
# A file server answers one thread at a time: where each answer takes a millisecond they wait.
_THREADS: Final = 16
_WORTH_THREADS: Final = 32
# The first few readings show whether threads would help: each reading costs one of several threads
# about as many seconds more as it may wait without them. A thread may meet a busy moment.
_FIRST: Final = 5
_WAIT_SECONDS: Final = 0.0005


class Listing:
    """One walk through a store's experiments. `warn` gets messages for the user, and `progress`
    shows how far a long reading is."""

    def __init__(
        self,
        store: Store,
        queues: Queues,
        warn: Callable[[str], None],
        progress: Progress = silent,
    ) -> None:
        self._store = store
        self._queues = queues
        self._warn = warn
        self._progress = progress
        self._catalog = store.catalog()
        self._known: dict[int, ExperimentSnapshot | Finished | None] = {}
        for problem in self._catalog.problems:
            warn(f"left out: {problem}")

    def newest_first(self, count: int | None = None) -> Iterator[ExperimentSnapshot | Finished]:
        """Yield all readable experiments, deleted ones too, with the queue's state of unfinished
        ones; the queue is queried once for the `count` that the caller probably takes (all by
        default), and again for more."""
        entries, size = self._catalog.newest_first(), count or _GROUP
        if count is None:
            self._look(self._catalog.unfinished)
        while page := list(islice(entries, size)):
            news = [n for n in page if isinstance(n, int) and n not in self._known]
            if news and count is None:  # further back than was asked for, or of a part that is gone
                news = [n for n in self._catalog.unfinished if n not in self._known]
            self._look(news)
            for one in page:
                found = self._known[one] if isinstance(one, int) else Finished(self._store, one)
                if found is not None:
                    yield found
            size, count = _GROUP, None

    def _look(self, numbers: list[int]) -> None:
        """Read these experiments, and ask the queue for those that are unfinished."""
        if not numbers:
            return
        unreadable: dict[int, StoreError] = {}
        whole = len(numbers)
        with self._progress("Reading experiments") if whole > _GROUP else silent("") as show:
            for done in range(0, whole, _GROUP):
                show(done, whole)
                self._take(numbers[done : done + _GROUP], unreadable)
        self._complain(unreadable)
        others = [one for n in numbers if isinstance(one := self._known[n], ExperimentSnapshot)]
        attach_job_status(others, self._queues)
        for text in snapshot_warnings(others):
            self._warn(text)
        self._catalog.settle([one.row for one in others])

    def _take(self, numbers: Sequence[int], unreadable: dict[int, StoreError]) -> None:
        """Keep of an ended experiment its row alone, and that at once."""
        for number, found in read_all(self._store, numbers):
            if isinstance(found, NotFound):
                self._known[number] = None  # its submission was interrupted
            elif isinstance(found, StoreError):
                self._known[number], unreadable[number] = None, found
            else:
                final = is_final(found.row)
                self._known[number] = Finished(self._store, found.row) if final else found
        known = (self._known[number] for number in numbers)
        self._catalog.settle([one.row for one in known if isinstance(one, Finished)])

    def _complain(self, unreadable: dict[int, StoreError]) -> None:
        if unreadable:
            more = ", ..." if len(unreadable) > 10 else ""
            names = ", ".join(map(str, sorted(unreadable)[:10])) + more
            first = unreadable[min(unreadable)]
            self._warn(f"left out because they can't be read: experiment {names} ({first})")


def read_all(
    store: Store, numbers: Sequence[int], *, keeps_logs: bool = False
) -> Iterator[tuple[int, ExperimentSnapshot | StoreError]]:
    """Read one after the other, and the rest several at a time if most of the first have waited for
    their files longer than for half of their computing."""

    def one(number: int) -> ExperimentSnapshot | StoreError:
        try:
            return read(ExperimentDir(store, number), keeps_logs=keeps_logs)
        except StoreError as error:
            return error

    waits = 0
    alone = numbers[:_FIRST] if len(numbers) - _FIRST >= _WORTH_THREADS else numbers
    for number in alone:
        began, cpu = time.perf_counter(), time.thread_time()
        found = one(number)
        computed = time.thread_time() - cpu
        waited = time.perf_counter() - began - computed
        waits += waited > max(_WAIT_SECONDS, computed / 2)
        yield number, found
    rest = numbers[len(alone) :]
    if waits <= _FIRST // 2:
        yield from ((number, one(number)) for number in rest)
        return
    from concurrent.futures import ThreadPoolExecutor  # only here: most lists read a few

    with ThreadPoolExecutor(_THREADS) as pool:
        yield from zip(rest, pool.map(one, rest), strict=True)
