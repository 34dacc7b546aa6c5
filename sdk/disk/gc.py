"""Garbage collection from outside of jobs: `Client.gc()`, one experiment's, and its preview."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from detslurm._base.states import UNKNOWN
from detslurm.sdk.checkpoints.catalog import (
    needed_by_search,
    storages_of,
    unreachable_problems,
)
from detslurm.sdk.disk.deletion import delete, remove_path
from detslurm.sdk.disk.leftovers import (
    PARTIAL,
    Known,
    Leftover,
    folders_of,
    folders_of_store,
    in_storage,
    interrupted_checks,
    interrupted_submission,
    known_checkpoints,
    never_began,
    temporary_files,
    temporary_names,
    unrecorded,
    unused,
)
from detslurm.sdk.disk.usage import SETTLED
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.snapshot import read
from detslurm.storage import SharedFS, Storages
from detslurm.store import (
    CheckpointView,
    ExperimentDir,
    ExperimentFacts,
    FinishedRows,
    NotFound,
    Store,
    StoreError,
    StoreFault,
    fold_experiment,
    fold_facts,
    fs,
    is_newer,
    refuse_newer,
)
from detslurm.store.errors import Problem
from detslurm.store.gc import Collector
from detslurm.store.gc_policy import FIELD, GCPolicy
from detslurm.store.provenance import digests_of_runs
from detslurm.store.rebuilding import (
    ADVICE,
    experiment_ids,
    lacks_experiments,
    rebuild_events,
    rebuild_ledger,
)
from detslurm.store.records import Created

# A deletion removes these last, or a late process writes them: a runner that compacts, a reader.
_LEFT: Final = {"config.json", "metrics.h5", "trials.json", "summary.json", "best", "latest"}

_PLAIN: Final = {"temporary file", "unused environment", "unused record", "interrupted check"}


class DoomedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that a policy does not keep, with its size in bytes; `metric` is the searcher's
    metric of the validation at exactly its `steps`, None without any."""

    uuid: str
    experiment: int
    trial: int
    steps: int
    metric: float | None
    size: int


class GCPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The effect that a policy would have on an experiment now: the `checkpoints` to be deleted, by
    trial, oldest first, their bytes, and the number of those that `stay`. `kept_by` has the reasons
    to keep some, by id; `problems` names storages that can't be seen from here; `unranked` means
    that no checkpoint has a validation of the searcher's metric."""

    policy: GCPolicy
    checkpoints: tuple[DoomedCheckpoint, ...]
    freed: int
    stay: int
    kept_by: dict[str, str]
    unranked: bool
    problems: tuple[str, ...] = ()


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints and the remains of crashes that garbage collection deleted, or would delete;
    `unrecorded` is the number of old checkpoints in the storage that no record names."""

    checkpoints: tuple[DoomedCheckpoint, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    unrecorded: int = 0

    @property
    def freed(self) -> int:
        """The bytes of all of them."""
        return sum(c.size for c in self.checkpoints) + sum(left.size for left in self.leftovers)


def collector_of(directory: ExperimentDir, facts: ExperimentFacts | None = None) -> Collector:
    """A collector for an experiment; `facts` are those that were read before, if any were. Raises
    as `storages_of`."""
    collector = Collector(directory, storages_of(directory), facts=facts or ExperimentFacts())
    collector.needed = lambda: needed_by_search(directory, collector.facts)
    return collector


def preview(collector: Collector, policy: GCPolicy | None = None) -> GCPreview:
    """The effect of a policy, by default the experiment's; nothing is deleted."""
    doomed = collector.choose(policy)
    unreachable = collector.files.unreachable(doomed)
    reachable = [checkpoint for checkpoint in doomed if checkpoint.uuid not in unreachable]
    kept = collector.facts.checkpoints.kept.values()
    return GCPreview(
        policy=policy or collector.policy(),
        checkpoints=_doomed(collector, reachable),
        freed=sum(checkpoint.size for checkpoint in reachable),
        stay=len(collector.values) - len(reachable),
        kept_by={uuid: fact.kept_by for fact in kept for uuid in fact.uuids},
        unranked=all(value is None for value in collector.values.values()),
        problems=tuple(unreachable_problems(unreachable)),
    )


def _doomed(
    collector: Collector, checkpoints: Iterable[CheckpointView]
) -> tuple[DoomedCheckpoint, ...]:
    return tuple(
        DoomedCheckpoint(
            uuid=checkpoint.uuid,
            experiment=collector.experiment.id,
            trial=checkpoint.trial,
            steps=checkpoint.steps,
            metric=collector.values.get(checkpoint.uuid),
            size=checkpoint.size,
        )
        for checkpoint in checkpoints
    )


class SettledExperiment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finished experiment with nothing left to delete: its checkpoints in use, and those that are
    over, their directory (None for a bucket), and the digests of records of what it ran."""

    used: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    base: str | None = None
    records: tuple[str, ...] = ()


class GarbageCollection:
    """One pass over some experiments of a store, or all of the user's own."""

    def __init__(self, store: Store, warn: Callable[[str], None], *, dry_run: bool) -> None:
        self._store, self._warn, self._dry_run = store, warn, dry_run
        self._names: dict[Path, set[str]] = {}  # in each storage, listed before records are read
        self._known: set[str] = set()  # of all storages: a storage may have several paths
        self._checkpoints: list[DoomedCheckpoint] = []
        self._leftovers: list[Leftover] = []
        self._staged: set[str] = set()  # archives of environments that may be needed
        self._records: set[str] = set()  # of what experiments ran, by their digests
        self._complete = True  # whether everything could be read that may name a checkpoint
        self._postponed = 0  # what may go at another time: temporary names, storages out of sight

    def run(self, ids: Sequence[int] | None, *, with_unrecorded: bool) -> Collected:
        """Collect; of all experiments where no ids are given."""
        settled = self._read_settled()
        numbers = settled.ledger.experiments() if ids is None else ids
        rows = dict(settled.rows) if ids is None else {}
        self._list_storages(numbers, rows)
        absent: set[int] = set()
        for number in numbers:
            row = rows.get(number)
            if row is not None and not self._has_left(row):
                self._known.update(row.used, row.over)
                self._records.update(row.records)
                continue
            try:
                directory = self._store.experiment(number)
                with directory.as_owner():
                    row = self._experiment(directory)
                if row is not None:
                    settled.rows[number] = row
            except (StoreError, LifecycleError, OSError, ValueError, ImportError) as error:
                if ids is not None:
                    raise
                if isinstance(error, NotFound) and never_began(ExperimentDir(self._store, number)):
                    absent.add(number)
                    continue
                self._complete = False
                self._warn(f"experiment {number} is left alone: {error}")
        settled.save()
        strange = self._outside(absent, numbers) if ids is None else []
        if with_unrecorded:
            self._remove(strange)
        return Collected(
            checkpoints=tuple(self._checkpoints),
            leftovers=tuple(self._leftovers),
            unrecorded=0 if with_unrecorded else len(strange),
        )

    def _outside(self, absent: set[int], numbers: Iterable[int]) -> list[Leftover]:
        """Remove leftovers that belong to no experiment; returns the unrecorded checkpoints."""
        self._remove(interrupted_checks(self._store))
        for folder in folders_of_store(self._store):
            self._remove(temporary_files(folder, temporary_names(folder)))
        for base, names in self._names.items():
            self._remove(temporary_files(base, [name for name in names if name.endswith(".tmp")]))
        for number in sorted(absent | {*experiment_ids(self._store)} - {*numbers}):
            self._remove(interrupted_submission(ExperimentDir(self._store, number)))
        if not self._complete:
            return []
        self._remove(unused(self._store, self._staged, self._records))
        listed = self._names.items()
        return [left for base, names in listed for left in unrecorded(base, names, self._known)]

    def _read_settled(self) -> FinishedRows[SettledExperiment]:
        """The ledger, rebuilt where facts of it are lost, and the experiments to skip."""
        settled = self._settled_rows()
        lost = settled.ledger.missing or self._store.ledger.log.gaps()
        if not self._dry_run and (
            lost or lacks_experiments(self._store, settled.ledger.experiments())
        ):
            try:
                for text in rebuild_ledger(self._store):
                    self._warn(text)
            except StoreError as error:
                self._warn(f"the ledger is not rebuilt: {error}")
            settled = self._settled_rows()
        self._complete &= not is_newer(settled.ledger.format)
        for problem in settled.ledger.problems:
            self._complete = False
            self._warn(
                f"the ledger can't be read ({problem}): checkpoints without a record stay. {ADVICE}"
            )
        return settled

    def _settled_rows(self) -> FinishedRows[SettledExperiment]:
        path, ledger = self._store.own("settled.json"), self._store.ledger
        return FinishedRows(path, ledger, SettledExperiment, schema=4, thorough=True)

    def _list_storages(self, ids: Iterable[int], rows: dict[int, SettledExperiment]) -> None:
        """List them before any record is read: a checkpoint in a list has been recorded by then."""
        bases = {Path(row.base) for row in rows.values() if row.base is not None}
        for number in (number for number in ids if number not in rows):
            try:
                storages = _storages_of(self._store.experiment(number))
            except (StoreError, OSError):
                continue  # the warning comes when the experiment is read
            storage = storages.of(None) if storages and storages.reachable(None) else None
            if isinstance(storage, SharedFS):
                bases.add(storage.base)
        for base in bases:
            try:
                self._names[base] = set(fs.names_in(base))
            except StoreFault as fault:  # another user's, and closed since
                self._warn(f"the files in {base} are skipped: {os.strerror(fault.errno or 0)}")

    def _has_left(self, row: SettledExperiment) -> bool:
        """Whether something lies in the storage that should not be there any more."""
        names = self._names.get(Path(row.base), set()) if row.base is not None else set()
        return any(uuid in names or f"{uuid}{PARTIAL}" in names for uuid in row.over)

    @property
    def _work(self) -> int:
        """How many things this pass has deleted or postponed."""
        return len(self._checkpoints) + len(self._leftovers) + self._postponed

    def _experiment(self, directory: ExperimentDir) -> SettledExperiment | None:
        """Collect; returns the row of an experiment that need not be read again."""
        facts = fold_facts(directory)
        refuse_newer(directory.path, facts.format)
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
            return SettledExperiment()
        records = _recorded_digests(directory, facts.created)
        self._records.update(records)
        before = self._work
        storages = _storages_of(directory)
        # The defaults are for submitted experiments: a script by hand keeps all checkpoints.
        has_policy = facts.created.managed or FIELD in facts.desired.fields
        if own and storages is not None and has_policy:
            facts = self._collect(directory, facts)
        known = known_checkpoints(directory, facts)
        self._known.update(known.used, known.over)
        self._name_problems(directory.id, (*facts.problems, *known.problems))
        if own and storages is not None:
            self._in_storages(storages, known, directory.id)
        for folder in folders_of(directory, facts) if own else ():
            temporary = temporary_names(folder)
            self._postponed += len(temporary)
            self._remove(temporary_files(folder, temporary, directory.id))
        if self._work != before or storages is None or not _is_settled(directory, facts, known):
            return None
        storage = storages.of(None)
        base = str(storage.base) if isinstance(storage, SharedFS) else None
        return SettledExperiment(
            used=tuple(known.used), over=tuple(known.over), base=base, records=records
        )

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
            seen = preview(collector)
            checkpoints, problems = seen.checkpoints, seen.problems
        else:
            done = collector.collect()
            checkpoints = _doomed(collector, done.deleted)
            problems = (*unreachable_problems(done.unreachable), *done.problems)
            collector.refresh()
        self._checkpoints += checkpoints
        self._postponed += len(problems)
        for problem in problems:
            self._warn(f"experiment {directory.id}: {problem}")
        return collector.facts

    def _in_storages(self, storages: Storages, known: Known, number: int) -> None:
        gone = {checkpoint.uuid for checkpoint in self._checkpoints}
        for section, over in known.over_by_storage():
            storage = storages.of(section)
            if isinstance(storage, SharedFS) and storages.reachable(section):
                left = {uuid: kind for uuid, kind in over.items() if uuid not in gone}
                names = self._names.get(storage.base)
                self._remove(in_storage(storage.base, names, left, number))

    def _finish_deletion(self, directory: ExperimentDir) -> None:
        self._leftovers.append(
            Leftover(kind="interrupted deletion", path=str(directory.path), experiment=directory.id)
        )
        if not self._dry_run:
            delete(read(directory))

    def _remove(self, leftovers: Iterable[Leftover]) -> None:
        for left in leftovers:
            if self._dry_run or self._is_removed(left):
                self._leftovers.append(left)
            else:
                self._postponed += 1

    def _is_removed(self, left: Leftover) -> bool:
        path = Path(left.path)
        try:
            if left.kind == "interrupted submission":
                for name in fs.names_in(path):
                    remove_path(path / name)
                return True
            if left.kind in _PLAIN:
                remove_path(path)
            else:
                SharedFS(path.parent).discard(path.name.removesuffix(PARTIAL))
        except OSError as error:
            self._warn(f"{path} can't be removed: {error.strerror}")
            return False
        if os.path.lexists(path):
            self._warn(f"{path} can't be removed completely")
            return False
        return True


def _recorded_digests(directory: ExperimentDir, created: Created) -> tuple[str, ...]:
    """The digests of the records of what an experiment ran."""
    recorded = created.provenance
    own = () if recorded is None else (recorded.code, recorded.software)
    return tuple(filter(None, (*own, *digests_of_runs(directory))))


def _storages_of(directory: ExperimentDir) -> Storages | None:
    """The storages of an experiment; None without a configuration: its submission broke off."""
    return storages_of(directory) if (directory.path / "config.json").exists() else None


def _is_settled(directory: ExperimentDir, facts: ExperimentFacts, known: Known) -> bool:
    """Whether nothing can become garbage before the experiment changes."""
    # A protection may end without a change of this experiment.
    if facts.checkpoints.kept or known.elsewhere or known.problems or facts.problems:
        return False
    row = fold_experiment(directory, facts)
    if not row.finished or UNKNOWN in row.trial_states:
        return False
    # An experiment that has just ended may still be compacted.
    return row.ended is None or time.time() - row.ended >= SETTLED
