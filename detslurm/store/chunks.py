"""The chunks of work that many workers share: which are claimed by whom, and which are done.

Both are facts in one numbered log. Their order decides, so a chunk is done by the first fact that
has it. A fact claims several chunks and commits several: a long log has less files than chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from detslurm._base.process import Identity
from detslurm.store.errors import StoreError, not_seen_yet
from detslurm.store.facts import FactLog
from detslurm.store.trial import TrialDir

Alive = Callable[["ChunkWorker"], bool | None]


class ChunkWorker(msgspec.Struct, frozen=True):
    """A process that works on chunks."""

    process: str  # its identity, as text
    trial: str = ""  # the directory of its trial; empty where it is not recorded
    run: int = 0  # the number of its run
    rank: int = 0

    @property
    def place(self) -> tuple[str, int]:
        """A value that the next run of its trial has, too, if it has a trial."""
        return (self.trial, self.rank) if self.trial else (self.process, 0)

    def is_alive(self) -> bool | None:
        """Whether it works on; None where there is no evidence. A run that has ended, or that a
        newer run has followed, does nothing that counts on."""
        if self.trial:
            trial = TrialDir(Path(self.trial), 0, 0)
            try:
                if trial.end(self.run) is not None or trial.start(self.run + 1) is not None:
                    return False
            except StoreError:
                return None
        process = Identity.parse(self.process)
        return None if process is None else process.alive()


class ChunksBegun(msgspec.Struct, frozen=True, tag_field="type", tag="chunks_begun"):
    """The first fact: the number of items, and of those in a chunk."""

    items: int
    chunk: int


class ChunksMoved(msgspec.Struct, frozen=True, tag_field="type", tag="chunks_moved"):
    """A worker commits the chunks that it has done, and claims the next."""

    worker: ChunkWorker
    done: tuple[int, ...] = ()
    claimed: tuple[int, ...] = ()


class ChunkState:
    """The fold of the facts up to `position`."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.position = 1  # the first fact has no chunks
        self.done: set[int] = set()
        self.workers: set[tuple[str, int]] = set()
        """The places of all workers; a run that follows another is not one more."""
        self.next_fresh = 0
        """The first chunk that was never claimed."""
        self._claims: dict[int, dict[ChunkWorker, int]] = {}

    def take(self, number: int, plain: Mapping[str, Any]) -> None:
        """Fold in a fact; an unreadable fact claims and commits nothing."""
        self.position = number
        try:
            fact = msgspec.convert(plain, ChunksMoved)
        except msgspec.ValidationError:
            return
        self.workers.add(fact.worker.place)
        self.done |= self._known(fact.done)
        for chunk in self._known(fact.claimed):
            self._claims.setdefault(chunk, {})[fact.worker] = number
            self.next_fresh = max(self.next_fresh, chunk + 1)
        for chunk in fact.done:
            self._claims.pop(chunk, None)

    def _known(self, chunks: Collection[int]) -> set[int]:
        return {chunk for chunk in chunks if 0 <= chunk < self.count}

    def lacking(self, done: Collection[int]) -> Iterator[tuple[int, dict[ChunkWorker, int]]]:
        """The claimed chunks that are not done, with their holders and the numbers of the claims;
        also those before a later claim whose own claim can't be read. Without those in `done`,
        which are about to be committed."""
        for chunk in range(self.next_fresh):
            if chunk not in self.done and chunk not in done:
                yield chunk, self._claims.get(chunk, {})


def chosen_chunks(
    state: ChunkState,
    me: ChunkWorker,
    most: int,
    joined: int,
    alive: Alive,
    done: Collection[int] = (),
) -> list[int]:
    """The chunks to claim next: new ones, then those of dead workers, then one whose workers are
    unknown.

    Of those of unknown workers none is claimed by more than two at once, so that idle workers don't
    all repeat the last chunks. A worker that has `joined` after their claims may: it is a new try.
    """
    if state.next_fresh < state.count:
        return [*range(state.next_fresh, min(state.next_fresh + most, state.count))]
    unknown: list[int] = []
    abandoned: list[int] = []
    for chunk, holders in state.lacking(done):
        if len(abandoned) == most:
            break
        found = {number: alive(one) for one, number in holders.items() if one != me}
        maybe = [number for number, lives in found.items() if lives is None]
        if not any(found.values()) and not maybe:
            abandoned.append(chunk)
        elif not any(found.values()) and (len(maybe) < 2 or max(maybe) <= joined):
            unknown.append(chunk)
    return abandoned or unknown[:1]


class ChunkQueue:
    """One worker's view of the chunks, and its claims and commits."""

    def __init__(
        self,
        log: FactLog,
        items: int,
        chunk: int,
        worker: ChunkWorker,
        alive: Alive = ChunkWorker.is_alive,
    ) -> None:
        self._log = log
        self._worker = worker
        self._ask = alive
        self._dead: set[ChunkWorker] = set()
        self._asked: dict[ChunkWorker, bool | None] = {}  # since the last claim
        self.state = ChunkState(-(-items // chunk))
        self._begin(ChunksBegun(items, chunk))
        self._catch_up()
        self._joined = self.state.position

    def _begin(self, wanted: ChunksBegun) -> None:
        """Raises `ValueError` where the chunks have begun in another way."""
        if self._log.put(1, msgspec.to_builtins(wanted)):
            return
        try:
            begun = msgspec.convert(self._log.read(1, expected=True), ChunksBegun)
        except msgspec.ValidationError as error:
            raise StoreError(f"{self._log.name(1)} can't be read: {error}") from error
        if begun != wanted:
            raise ValueError(
                f"{self._log.path} has begun with {begun.items} items in chunks of {begun.chunk},"
                f" not {wanted.items} in chunks of {wanted.chunk}: use another name for these"
            )

    def _catch_up(self) -> None:
        for fact in self._log.facts(self.state.position):
            self.state.take(fact["n"], fact)

    def advance(self, done: Collection[int], most: int) -> list[int]:
        """Commit the chunks in `done`, and claim and return at most `most` chunks, in one fact."""
        before = 0
        while True:
            self._catch_up()
            if self.state.position == before:
                raise not_seen_yet(self._log.name(before + 1))
            before = self.state.position
            new = tuple(sorted(set(done) - self.state.done))
            claimed = self._chosen(most, new) if most else []
            if not new and not claimed:
                return []
            fact = msgspec.to_builtins(ChunksMoved(self._worker, new, tuple(claimed)))
            if self._log.put(before + 1, fact):
                self.state.take(before + 1, fact)
                return claimed

    def _chosen(self, most: int, done: Collection[int]) -> list[int]:
        self._asked.clear()
        return chosen_chunks(self.state, self._worker, most, self._joined, self._alive, done)

    def _alive(self, worker: ChunkWorker) -> bool | None:
        """As the worker's evidence has it; the dead don't come back."""
        if worker in self._dead:
            return False
        if worker not in self._asked:
            self._asked[worker] = self._ask(worker)
        if self._asked[worker] is False:
            self._dead.add(worker)
        return self._asked[worker]
