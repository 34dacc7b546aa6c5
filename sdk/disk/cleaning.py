"""`Client.gc()`: garbage collection of whole experiments, and of what crashes have left behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from detslurm.sdk.checkpoints.catalog import storages_of, unreachable_problems
from detslurm.sdk.disk.deletion import delete
from detslurm.sdk.disk.garbage import DoomedCheckpoint, collector_of, preview
from detslurm.sdk.disk.leftovers import (
    PARTIAL,
    Known,
    Leftover,
    folders_of,
    folders_of_store,
    in_storage,
    interrupted_submission,
    known_checkpoints,
    never_began,
    temporary_files,
    temporary_names,
    unrecorded,
    unused_environments,
)
from detslurm.sdk.disk.settled import SettledExperiment, SettledExperiments, settled
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.snapshot import read
from detslurm.storage import SharedFS, Storages
from detslurm.store import (
    ExperimentDir,
    ExperimentFacts,
    NotFound,
    Store,
    StoreError,
    StoreFault,
    fold_facts,
    fs,
)
from detslurm.store.errors import Problem
from detslurm.store.gc_policy import FIELD
from detslurm.store.rebuilding import (
    ADVICE,
    experiment_ids,
    lacks_experiments,
    rebuild_events,
    rebuild_ledger,
)

# What a deletion removes last, and what may come later of those that began before it: a runner that
# compacts, somebody who reads the experiment.
_LEFT: Final = {"config.json", "metrics.h5", "trials.json", "summary.json", "best", "latest"}


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What garbage collection deleted, or would delete.

    Attributes:
        checkpoints: The checkpoints that the policies of their experiments do not keep.
        leftovers: What crashes had left behind.
        unrecorded: How many old checkpoints lie in the storage that no record names.
    """

    checkpoints: tuple[DoomedCheckpoint, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    unrecorded: int = 0

    @property
    def freed(self) -> int:
        """The bytes of all that."""
        return sum(c.size for c in self.checkpoints) + sum(left.size for left in self.leftovers)


class Cleaning:
    """One pass over some experiments of a store, or all of the user's own."""

    def __init__(self, store: Store, warn: Callable[[str], None], *, dry_run: bool) -> None:
        self._store, self._warn, self._dry_run = store, warn, dry_run
        self._names: dict[Path, set[str]] = {}
        self._known: set[str] = set()  # of all storages: one may have several paths
        self._checkpoints: list[DoomedCheckpoint] = []
        self._leftovers: list[Leftover] = []
        self._staged: set[str] = set()  # archives of environments that may be needed
        self._complete = True  # whether everything could be read that may name a checkpoint
        self._stay = 0  # what may go at another time: temporary names, storages out of sight

    def run(self, ids: Sequence[int] | None, *, with_unrecorded: bool) -> Collected:
        """Collect; of all experiments where no ids are given."""
        before = self._ledger_read()
        chosen = before.ledger.experiments() if ids is None else ids
        known = {} if ids is not None else {n: row for n in chosen if (row := before.get(n))}
        self._list_storages(chosen, known)
        absent: set[int] = set()
        for number in chosen:
            row = known.get(number)
            if row is not None and not self._has_left(row):
                self._known.update(row.used, row.over)
                continue
            try:
                directory = self._store.experiment(number)
                with directory.as_owner():
                    new = self._experiment(directory)
                if new is not None:
                    before.add(number, *new)
            except (StoreError, LifecycleError, OSError, ValueError, ImportError) as error:
                if ids is not None:
                    raise
                if isinstance(error, NotFound) and never_began(self._directory(number)):
                    absent.add(number)
                    continue
                self._complete = False
                self._warn(f"experiment {number} is left alone: {error}")
        before.save()
        strange: list[Leftover] = []
        if ids is None:
            self._leave_what_belongs_to_none(absent | {*experiment_ids(self._store)} - {*chosen})
            if self._complete:
                self._leave(unused_environments(self._store.own("environments"), self._staged))
            strange = self._strange()
            if with_unrecorded:
                self._leave(strange)
        return Collected(
            checkpoints=tuple(self._checkpoints),
            leftovers=tuple(self._leftovers),
            unrecorded=0 if with_unrecorded else len(strange),
        )

    def _leave_what_belongs_to_none(self, absent: Iterable[int]) -> None:
        """Temporary files outside of experiments, and the `absent` ones that never came to be."""
        for folder in folders_of_store(self._store):
            self._leave(temporary_files(folder, temporary_names(folder)))
        for base, names in self._names.items():
            self._leave(temporary_files(base, [n for n in names if n.endswith(".tmp")]))
        for number in sorted(absent):
            self._leave(interrupted_submission(self._directory(number)))

    def _directory(self, number: int) -> ExperimentDir:
        return ExperimentDir(self._store, number)

    def _ledger_read(self) -> SettledExperiments:
        """The ledger, after what was lost of it has been rebuilt, and what needs no reading."""
        found = SettledExperiments(self._store)
        lost = found.ledger.missing or self._store.ledger.log.gaps()
        if not self._dry_run and (
            lost or lacks_experiments(self._store, found.ledger.experiments())
        ):
            try:
                for text in rebuild_ledger(self._store):
                    self._warn(text)
            except StoreError as error:
                self._warn(f"the ledger is not rebuilt: {error}")
            found = SettledExperiments(self._store)
        for problem in found.ledger.problems:
            self._warn(
                f"the ledger can't be read ({problem}): what no record names stays. {ADVICE}"
            )
        self._complete = not found.ledger.problems
        return found

    def _list_storages(self, ids: Iterable[int], known: Mapping[int, SettledExperiment]) -> None:
        """Before any record is read: what is there has been recorded by then."""
        for base in {row.base for row in known.values() if row.base is not None}:
            self._list(Path(base))
        for number in ids:
            if number in known:
                continue
            try:
                storages = _storages_of(self._store.experiment(number))
            except (StoreError, OSError):
                continue  # the reason is told when it is its turn
            storage = storages.of(None) if storages and storages.reachable(None) else None
            if isinstance(storage, SharedFS) and storage.base not in self._names:
                self._list(storage.base)

    def _list(self, base: Path) -> None:
        try:
            self._names[base] = set(fs.names_in(base))
        except StoreFault as fault:  # somebody else's, and closed since: all else is looked at
            self._warn(f"what lies in {base} is not looked at: {os.strerror(fault.errno or 0)}")

    @property
    def _left(self) -> int:
        """How much a later pass may have to look at."""
        collected = len(self._checkpoints) if self._dry_run else 0
        return collected + len(self._leftovers) + self._stay

    def _has_left(self, row: SettledExperiment) -> bool:
        """Whether something lies in the storage that should not be there any more."""
        names = self._names.get(Path(row.base), set()) if row.base is not None else set()
        return any(uuid in names or f"{uuid}{PARTIAL}" in names for uuid in row.over)

    def _experiment(self, directory: ExperimentDir) -> tuple[SettledExperiment, int] | None:
        """Collect; returns what is known of an experiment that need not be read again, and how many
        facts tell it."""
        facts = fold_facts(directory)
        own = directory.foreign_owner() is None
        if own and facts.created.search and not self._dry_run:
            for text in rebuild_events(directory):
                self._warn(text)
        if facts.created.environment is not None:
            self._staged.add(facts.created.environment.in_store(self._store.path).archive)
        if facts.desired.deleted:
            if own and _LEFT & set(fs.names_in(directory.path)):
                self._finish_deletion(directory)
                return None
            return SettledExperiment(), facts.count
        left = self._left
        storages = _storages_of(directory)
        # Who ran a script by hand was never asked how many of its checkpoints shall stay.
        has_policy = facts.created.managed or FIELD in facts.desired.fields
        if own and storages is not None and has_policy:
            facts = self._collect(directory, facts)
        known = known_checkpoints(directory, facts)
        self._known.update(known.used, known.over)
        self._name_problems(directory.id, (*facts.problems, *known.problems))
        if storages is not None and own:
            self._in_storages(storages, known, directory.id)
        if own:
            for folder in folders_of(directory, facts):
                temporary = temporary_names(folder)
                self._stay += len(temporary)
                self._leave(temporary_files(folder, temporary, directory.id))
        if self._left != left or storages is None:
            return None
        storage = storages.of(None)
        base = str(storage.base) if isinstance(storage, SharedFS) else None
        row = settled(directory, facts, known, base)
        return None if row is None else (row, facts.count)

    def _name_problems(self, number: int, problems: Sequence[Problem]) -> None:
        if not problems:
            return
        self._complete = False
        more = f" and {len(problems) - 1} more" if problems[1:] else ""
        self._warn(
            f"experiment {number}: {problems[0].path}: {problems[0].reason}{more}: checkpoints that"
            f" it may name stay. {ADVICE}"
        )

    def _collect(self, directory: ExperimentDir, facts: ExperimentFacts) -> ExperimentFacts:
        """Collect by the policy; returns the facts as they are afterwards."""
        collector = collector_of(directory, facts)
        if self._dry_run:
            found = preview(collector)
            self._checkpoints += found.checkpoints
            problems = found.problems
        else:
            done = collector.collect()
            self._checkpoints += (DoomedCheckpoint.of(collector, one) for one in done.deleted)
            problems = (*unreachable_problems(done.unreachable), *done.problems)
        self._stay += len(problems)
        for problem in problems:
            self._warn(f"experiment {directory.id}: {problem}")
        return collector.facts if self._dry_run else collector.refresh()

    def _in_storages(self, storages: Storages, known: Known, number: int) -> None:
        gone = {one.uuid for one in self._checkpoints}
        for section, over in known.over_by_storage():
            storage = storages.of(section)
            if isinstance(storage, SharedFS) and storages.reachable(section):
                left = {uuid: kind for uuid, kind in over.items() if uuid not in gone}
                names = self._names.get(storage.base)
                self._leave(in_storage(storage.base, names, left, number))

    def _finish_deletion(self, directory: ExperimentDir) -> None:
        self._leftovers.append(
            Leftover(kind="interrupted deletion", path=str(directory.path), experiment=directory.id)
        )
        if not self._dry_run:
            delete(read(directory))

    def _strange(self) -> list[Leftover]:
        if not self._complete:
            return []
        return [
            one
            for base, names in self._names.items()
            for one in unrecorded(base, names, self._known)
        ]

    def _leave(self, leftovers: Iterable[Leftover]) -> None:
        for one in leftovers:
            if self._dry_run or self._removed(one):
                self._leftovers.append(one)
            else:
                self._stay += 1

    def _removed(self, one: Leftover) -> bool:
        path = Path(one.path)
        try:
            if one.kind in ("temporary file", "unused environment") and not path.is_dir():
                path.unlink(missing_ok=True)
            elif one.kind == "temporary file":
                fs.remove_tree(path)
            elif one.kind == "interrupted submission":
                for name in fs.names_in(path):
                    fs.remove_tree(path / name)
                    fs.discard(str(path / name))
                return True
            else:
                SharedFS(path.parent).discard(path.name.removesuffix(".partial"))
        except OSError as error:
            self._warn(f"{path} can't be removed: {error.strerror}")
            return False
        if os.path.lexists(path):
            self._warn(f"{path} can't be removed completely")
            return False
        return True


def _storages_of(directory: ExperimentDir) -> Storages | None:
    """Where its checkpoints are; None where nothing tells: its submission broke off."""
    return storages_of(directory) if (directory.path / "config.json").exists() else None
