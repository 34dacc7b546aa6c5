"""A store as many readers look at it at once: each thing is read once and shown to all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from detslurm._base.states import UNKNOWN
from detslurm.look.document import LIVE, ExperimentPart, Snapshot
from detslurm.look.plain import plain
from detslurm.look.snapshot import MOST_TRIALS, ReadSoFar, snapshot
from detslurm.sdk import Client, Experiment
from detslurm.sdk.experiments.reconcile import snapshot_warnings
from detslurm.sdk.experiments.store_reader import StoreReader
from detslurm.store import ExperimentRow, NotFound, StoreError

FRESH_SECONDS: Final = 2.0
"""For how long a reader gets what another one got."""

_REST: Final = 5.0
_KEPT: Final = 12

Answer = TypeVar("Answer")
Connect = Callable[[], Client]


class StoreMissing(NotFound):
    """There is no store: not yet, or not any more."""


class Overview(NamedTuple):
    """The newest experiments of the store at a path, with warnings about unreadable records and
    queues that did not answer."""

    store: str
    rows: Sequence[ExperimentRow]
    warnings: Sequence[str]


class LiveStore:
    """The experiments of a store as they are now, for any number of threads."""

    def __init__(self, connect: Connect, clock: Callable[[], float] = time.monotonic) -> None:
        self._connect = connect
        self._client = connect()
        self._store = StoreReader(self._client, clock, keeps_logs=True)
        self._lock = threading.Lock()
        self._read, self._incarnation = ReadSoFar(), 0

    def overview(
        self, wanted: Callable[[ExperimentRow], bool], most: int, *, archived: bool = False
    ) -> Overview:
        """The newest `most` experiments that are `wanted`. Raises `StoreMissing` if there is no
        store, `StoreError` if it can't be read."""
        with self._lock:
            self._poll(None)
            rows = [*islice(filter(wanted, self._store.rows(archived=archived)), most)]
            warnings = [*self._store.problems, *snapshot_warnings(self._store.unfinished)]
            return Overview(str(self._client.store.path), rows, warnings)

    def snapshot(self, ids: Sequence[int]) -> Snapshot:
        """These experiments with all that a page shows; those that can't be read are shown as such.

        Raises `StoreMissing` if there is no store, `StoreError` if none of them can be read.
        """
        with self._lock:
            self._poll(ids)
            found: list[Experiment] = []
            unread: list[StoreError] = []
            for number in ids:
                try:
                    one = self._store.experiment(number)
                    found.append(Experiment(self._client.queues, one))
                except StoreError as error:
                    unread.append(error)
            if not found:
                raise unread[0]
            taken = snapshot(found, code=True, budget=LIVE, known=self._read)
            self._store.forget_logs(MOST_TRIALS, ids)
            return _with_unread(taken, ids, unread)

    def stored(self, number: int) -> Experiment:
        """An experiment as the store has it now, to be changed. Raises `StoreMissing`, `NotFound`
        or `StoreError`."""
        client = self._connect()
        _check(client)
        return client.stored(number)

    def _poll(self, ids: Sequence[int] | None) -> None:
        _check(self._client)
        self._store.poll(ids)
        if self._incarnation != self._store.incarnation:
            self._incarnation, self._read = self._store.incarnation, ReadSoFar()


def _check(client: Client) -> None:
    if text := client.missing():
        raise StoreMissing(text)


def _with_unread(taken: Snapshot, ids: Sequence[int], errors: Sequence[StoreError]) -> Snapshot:
    """The document with a part for each experiment that is not in it, in the order of the ids."""
    parts = {part.id: part for part in taken.experiments}
    missing = [number for number in ids if number not in parts]
    for number, error in zip(missing, errors, strict=True):
        text = plain(f"it can't be read: {error}")
        parts[number] = ExperimentPart(id=number, state=UNKNOWN, problems=[text])
    return replace(taken, experiments=[parts[number] for number in ids])


class AnswerMemory(Generic[Answer]):
    """Answers that are made one at a time and kept for a moment.

    Answers that took long to make are kept longer, and the longer the more are in use: clients that
    keep asking cost a sixth of a core together. Errors are not kept.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Answer, float]] = {}  # and until when

    def clear(self) -> None:
        """Forget all answers, because what they were made of was changed."""
        with self._lock:
            self._known = {}

    def get(self, key: str, make: Callable[[], Answer]) -> Answer:
        """The kept answer of that key, else what `make` returns."""
        with self._lock:
            begun = self._clock()
            if key in self._known and begun < self._known[key][1]:
                return self._known[key][0]
            answer = make()
            now = self._clock()
            # A page without readers grows old, and leaves the cache: it may have 10 MB.
            self._known = {other: one for other, one in self._known.items() if one[1] > now}
            rest = max(FRESH_SECONDS, _REST * (now - begun) * (1 + len(self._known)))
            while len(self._known) >= _KEPT:
                del self._known[next(iter(self._known))]
            self._known[key] = answer, now + rest
            return answer
