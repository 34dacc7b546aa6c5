"""Lost records: their places, and those that other records can rebuild."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from detslurm._base.quantities import counted
from detslurm.store import fs
from detslurm.store.errors import NotFound, StoreError
from detslurm.store.event_log import packed
from detslurm.store.experiment import ExperimentDir
from detslurm.store.facts import FactLog, format_of, refuse_newer
from detslurm.store.ledger import Block, owner_of
from detslurm.store.reading import fold_facts
from detslurm.store.records import Created, Trials, typed
from detslurm.store.store import Store

_THREADS: Final = 16  # each listing waits for the file server

ADVICE: Final = (
    "Restore the files from a backup, or let `detslurm gc` rebuild them from other records. If a"
    " file is lost for good, create an empty one in its place."
)
"""The remedy for a lost record, for users."""


class _Gap(NamedTuple):
    """Numbers of lost facts in a row, and the trial ids that they may have given."""

    numbers: Sequence[int]
    first: int
    end: float

    def may_have_given(self, block: Block) -> bool:
        return self.first <= block.first and block.first + block.count <= self.end


def lost_records(store: Store) -> list[Path]:
    """The files of all numbered facts that were lost, by listings of the whole store."""
    logs = [store.ledger.log, store.models.log]
    for number in experiment_ids(store):
        one = ExperimentDir(store, number)
        logs += [one.log, FactLog(one.search), FactLog(one.path / "spending")]
    with ThreadPoolExecutor(_THREADS) as pool:
        return [path for found in pool.map(_lost_in, logs) for path in found]


def _lost_in(log: FactLog) -> list[Path]:
    try:
        return [log.name(number) for number in log.gaps()]
    except StoreError:
        return []  # another user's


def experiment_ids(store: Store) -> list[int]:
    """The ids that experiments have claimed, by a listing: also of those that never came to be."""
    return sorted(int(name) for name in fs.names_in(store.path / "experiments") if name.isdigit())


def rebuild_events(directory: ExperimentDir) -> Iterator[str]:
    """Rebuild lost events of a search from packs of them; a sentence for each."""
    log = FactLog(directory.search)
    for number in log.gaps():
        fact = next((one for one in packed(log, number) if one["n"] == number), None)
        if fact is not None:
            log.put(number, {key: value for key, value in fact.items() if key != "n"})
            yield f"{log.name(number)} was lost and has been rebuilt from a pack"


def lacks_experiments(store: Store, known: Iterable[int]) -> bool:
    """Whether the ledger, which names the `known` experiments, lacks others that exist: its last
    facts were lost, and no later ones show it."""
    others = set(experiment_ids(store)).difference(known)
    return any(ExperimentDir(store, number).log.read(1) for number in others)


def rebuild_ledger(store: Store) -> Iterator[str]:
    """Rebuild lost facts of the ledger from the facts of the experiments; a sentence for each.

    A lost fact stays lost where facts of an experiment can't be read, for it may have named such an
    experiment. Raises `StoreError` where nothing is known of an experiment, and `NewerFormat`.
    """
    log = store.ledger.log
    facts = list(log.facts(thorough=True, skip_refused=True))
    refuse_newer(log.path, max(map(format_of, facts), default=1))
    given = sorted(map(_block_of, filter(_gives_ids, facts)), key=_first)
    ids, lost, whole = experiment_ids(store), list[Block](), True
    for number in ids:
        blocks, readable = _blocks(ExperimentDir(store, number))
        whole &= readable
        lost += _joined(block for block in blocks if owner_of(given, block.first) is None)
    lost.sort(key=_first)
    for gap in _gaps(facts):
        fitting = [block for block in lost if gap.may_have_given(block)]
        if len(fitting) == len(gap.numbers) or (whole and len(fitting) < len(gap.numbers)):
            yield from _refill(log, gap.numbers, fitting, ids)
            lost = [block for block in lost if block not in fitting]
    end = max((block.first + block.count for block in given), default=1)
    for block in lost:
        if block.first >= end:
            yield _rebuilt(log, log.append(_fact_of(block), len(facts)), block)


def _joined(blocks: Iterable[Block]) -> list[Block]:
    """Ids in a row as one block: an import gets all its ids by one fact of the ledger."""
    found: list[Block] = []
    for block in sorted(blocks, key=_first):
        if found and found[-1].first + found[-1].count == block.first:
            before = found.pop()
            block = Block(before.first, before.count + block.count, block.experiment)
        found.append(block)
    return found


def _first(block: Block) -> int:
    return block.first


def _block_of(fact: dict[str, Any]) -> Block:
    return Block(fact["first_trial"], fact["trials"], fact["id"])


def _refill(
    log: FactLog, numbers: Sequence[int], blocks: Sequence[Block], ids: Sequence[int]
) -> Iterator[str]:
    """Facts that gave these ids; all other lost ones noted changes of unknown experiments."""
    for number, block in zip(numbers, blocks, strict=False):
        log.put(number, _fact_of(block))
        yield _rebuilt(log, number, block)
    for number in numbers[len(blocks) :]:
        log.put(number, {"type": "touched", "ids": list(ids)})
        yield f"{log.name(number)} was lost and gave no trial ids: all experiments are read again"


def _fact_of(block: Block) -> dict[str, Any]:
    return {
        "type": "trials",
        "id": block.experiment,
        "first_trial": block.first,
        "trials": block.count,
    }


def _rebuilt(log: FactLog, number: int, block: Block) -> str:
    return (
        f"{log.name(number)} was lost and has been rebuilt: it gives"
        f" {counted(block.count, 'trial')} from {block.first} on to experiment {block.experiment}"
    )


def _gaps(facts: Iterable[dict[str, Any]]) -> Iterator[_Gap]:
    numbers: list[int] = []
    first = 1
    for fact in facts:
        if fact.get("missing"):
            numbers.append(fact["n"])
        elif _gives_ids(fact):
            if numbers:
                yield _Gap(numbers, first, fact["first_trial"])
            numbers, first = [], max(first, fact["first_trial"] + fact["trials"])
    if numbers:
        yield _Gap(numbers, first, float("inf"))


def _gives_ids(fact: dict[str, Any]) -> bool:
    numbers = ("first_trial", "trials", "id")
    return all(isinstance(fact.get(name), int) for name in numbers)


def _blocks(directory: ExperimentDir) -> tuple[list[Block], bool]:
    """The trial ids that an experiment's own facts name, and whether all facts can be read."""
    try:
        whole = not fold_facts(directory).problems
    except NotFound:
        return [], True  # its submission died, or is still busy
    named = [fact for fact in map(typed, directory.facts()) if isinstance(fact, Created | Trials)]
    blocks = [Block(fact.first_trial, fact.trials, directory.id) for fact in named if fact.trials]
    return blocks, whole
