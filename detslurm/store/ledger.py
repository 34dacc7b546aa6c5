"""The ledger: numbered facts of the whole store, which give trials their ids."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from detslurm._base import access
from detslurm.store.errors import RecordMissing, StoreError, not_seen_yet
from detslurm.store.facts import REFUSED, FactLog, format_of, refuse_newer
from detslurm.store.records import LARGEST


class Block(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run of trial ids that belongs to one experiment."""

    first: int
    count: int
    experiment: int


def owner_of(blocks: Sequence[Block], trial_id: int) -> Block | None:
    """The block that holds a trial id, of blocks in the order of the ledger."""
    place = bisect_right(blocks, trial_id, key=lambda block: block.first) - 1
    if place < 0:
        return None
    block = blocks[place]
    return block if trial_id < block.first + block.count else None


def touched_by(fact: Mapping[str, Any]) -> Collection[int]:
    """The experiments that a `touched` fact names: one, or `ids` where one was rebuilt."""
    named = fact.get("ids", [fact.get("id")])
    return [n for n in named if isinstance(n, int)] if isinstance(named, list) else ()


class LedgerState(msgspec.Struct):
    """The fold of the ledger up to fact `position`; its owner may take `blocks` away."""

    position: int = 0
    next_trial: int = 1
    blocks: list[Block] = msgspec.field(default_factory=list)
    # Facts since the last block that can't be read: each may have given up to LARGEST ids.
    unknown: int = 0
    # Of all facts, how many this user can't read now, though they may come to be readable.
    refused: int = 0
    missing: str = ""  # the path of the first fact that was lost
    format: int = 1  # the newest of its facts
    problems: list[str] = msgspec.field(default_factory=list)

    @property
    def next_free(self) -> int:
        """The first trial id that certainly belongs to no experiment."""
        return self.next_trial + self.unknown * LARGEST

    def experiments(self) -> list[int]:
        """Ids of the experiments to which these blocks belong, ascending."""
        return sorted({block.experiment for block in self.blocks})

    def advance(self, fact: Mapping[str, Any]) -> Collection[int]:
        """Fold in the next fact; returns the experiments that it concerns."""
        self.position = fact["n"]
        self.format = max(self.format, format_of(fact))
        kind = fact.get("type")
        if kind in ("experiment", "trials"):
            block = Block(fact["first_trial"], fact["trials"], fact["id"])
            self.blocks.append(block)
            self.next_trial = max(self.next_trial, block.first + block.count)
            self.unknown = 0
            return (block.experiment,)
        if kind in ("corrupt", REFUSED):
            self.unknown += 1
            self.refused += kind == REFUSED or bool(fact.get("missing")) or "v" in fact
            if fact.get("missing"):
                self.missing = self.missing or str(fact["path"])
            self.problems.append(f"{fact.get('path')}: {fact.get('problem')}")
        return touched_by(fact) if kind == "touched" else ()


class Ledger:
    """The store's ledger on disk."""

    def __init__(self, path: Path) -> None:
        self.log = FactLog(path)

    def catch_up(self, state: LedgerState, *, thorough: bool = False) -> set[int]:
        """Fold the ledger's tail into `state`; returns the experiments that the tail concerns.

        `thorough` as for `FactLog.facts`.
        """
        concerned: set[int] = set()
        for fact in self.log.facts(state.position, skip_refused=True, thorough=thorough):
            concerned.update(state.advance(fact if _is_whole(fact) else self._corrupt(fact)))
        return concerned

    def _corrupt(self, fact: Mapping[str, Any]) -> dict[str, Any]:
        path = self.log.name(fact["n"])
        return {
            "type": "corrupt",
            "n": fact["n"],
            "path": path,
            "problem": "its numbers cannot be right",
        }

    def reserve(self, state: LedgerState, experiment: int, count: int) -> int:
        """Give `count` consecutive trial ids to an experiment; returns the first id.

        `state` is from a thorough reading. Raises `RecordMissing` where a fact of the ledger was
        lost, for it may have given the next ids to another experiment, and `NewerFormat`.
        """
        if count > LARGEST:
            raise StoreError(f"{count} trials are more than an experiment may have ({LARGEST})")
        access.clear_cache()  # the store may have been shared since: all have to read this
        while True:
            refuse_newer(self.log.path, state.format)
            if state.missing:
                raise RecordMissing(state.missing, "no trial ids are given")
            first = state.next_free
            fact = {
                "type": "trials",
                "id": experiment,
                "first_trial": first,
                "trials": count,
            }
            if self.log.put(state.position + 1, fact):
                state.advance({**fact, "n": state.position + 1})
                return first
            before = state.position
            self.catch_up(state)
            if state.position == before:
                raise not_seen_yet(self.log.name(before + 1))

    def touch(self, state: LedgerState, experiment: int) -> int:
        """Note that a fact was added which a summary made before does not know."""
        access.clear_cache()
        return self.log.append({"type": "touched", "id": experiment}, state.position)


def _is_whole(fact: Mapping[str, Any]) -> bool:
    if fact.get("type") == "touched":
        return isinstance(fact.get("id"), int)
    if fact.get("type") not in ("experiment", "trials"):
        return True
    first, count, experiment = (fact.get(name) for name in ("first_trial", "trials", "id"))
    if not (isinstance(first, int) and isinstance(count, int) and isinstance(experiment, int)):
        return False
    # No fact gives more than LARGEST: a larger id would leave none to those that follow.
    return first > 0 and 0 <= count <= LARGEST and first + count <= fact["n"] * LARGEST + 1
