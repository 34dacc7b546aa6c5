"""All checkpoints of a store, or one by its id: from the index, or from folded records, which the
index then has until the experiment changes. No directory is searched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from detslurm._base.quantities import counted
from detslurm.sdk.experiments.snapshot import ExperimentSnapshot, read
from detslurm.storage import SharedFS, Storage, Storages
from detslurm.store import (
    STALE_AFTER,
    ExperimentDir,
    ExperimentFacts,
    Links,
    NotFound,
    Store,
    StoreError,
    TrialView,
    correct_links,
    is_final,
    is_newer,
    links_of,
)
from detslurm.store.checkpoint_index import SavedCheckpoints, checkpoint_index, row_of


def saved_checkpoints(
    store: Store, warn: Callable[[str], None], ids: Iterable[int] | None = None
) -> Iterator[SavedCheckpoints]:
    """The checkpoints of these (by default all) experiments; it warns of unreadable ones."""
    index = checkpoint_index(store)
    for problem in index.ledger.problems:
        warn(f"left out: {problem}")
    settled: dict[int, SavedCheckpoints] = {}
    unreadable: dict[int, StoreError] = {}
    for number in index.ledger.experiments() if ids is None else sorted(set(ids)):
        found = index.rows.get(number)
        if found is None:
            try:
                found, finished = _folded(store, number)
            except StoreError as error:
                unreadable[number] = error
                continue
            if finished and found is not None:
                settled[number] = found
        if found is not None:
            yield found
    index.rows.update(settled)
    if settled or index.tail >= STALE_AFTER:
        index.save()
    if unreadable:
        first, others = next(iter(unreadable.items())), len(unreadable) - 1
        more = f" and {others} more" if others else ""
        warn(f"left out because it can't be read: experiment {first[0]}{more} ({first[1]})")


def _folded(store: Store, number: int) -> tuple[SavedCheckpoints | None, bool]:
    """An experiment's checkpoints, and whether they are for the index."""
    try:
        snapshot = read(store.experiment(number))
    except NotFound:
        return None, False  # its submission was interrupted
    if snapshot.facts.desired.deleted:
        return SavedCheckpoints(experiment=number), True
    row, saved = snapshot.view.row(), of_snapshot(snapshot)
    if not is_newer(row.format):
        correct_links_of(snapshot.directory, saved)  # a new fold means a change
    return saved, is_final(row)


def of_snapshot(
    snapshot: ExperimentSnapshot, trials: Iterable[int] | None = None
) -> SavedCheckpoints:
    """The checkpoints of one experiment, or of some of its trials, read now."""
    begun = [row.id for row in snapshot.trials.values() if row.run_count]
    if trials is not None:
        chosen = set(trials)
        begun = [trial for trial in begun if trial in chosen]
    return saved_by(snapshot, map(snapshot.read_trial, begun))


def saved_by(snapshot: ExperimentSnapshot, trials: Iterable[TrialView]) -> SavedCheckpoints:
    """The checkpoints of trials of one experiment that were read already."""
    created = snapshot.facts.created
    views = [one for trial in trials for one in trial.checkpoints]
    storage = storage_of(snapshot.directory)
    return SavedCheckpoints(
        experiment=snapshot.directory.id,
        rows=tuple(map(row_of, views)),
        base=str(storage.base) if isinstance(storage, SharedFS) else None,
        where=storage.where if storage is not None else "",
        metric=created.metric,
        smaller_is_better=created.smaller_is_better,
        objectives=created.objectives,
    )


def correct_links_of(directory: ExperimentDir, saved: SavedCheckpoints | None = None) -> None:
    """Correct the links to the best and the newest checkpoint, except in another user's experiment.
    The checkpoints, if they are known, are read again only where a link is wrong."""
    if directory.foreign_owner():
        return
    known = [saved or of_snapshot(read(directory))]
    if (base := known[0].base) is None:
        return

    def links() -> Links:
        now = known.pop() if known else of_snapshot(read(directory))
        return links_of(now.rows, now)

    with suppress(OSError), directory.as_owner():  # a failure costs the links only
        correct_links(directory, Path(base), links)


def storage_of(directory: ExperimentDir) -> Storage | None:
    """The configured storage of an experiment; None where its configuration has none."""
    try:
        return storages_of(directory).of(None)
    except StoreError:
        return None


def storages_of(directory: ExperimentDir) -> Storages:
    """The storages of an experiment's checkpoints. Raises `StoreError` without a configuration."""
    try:
        storages = Storages(directory.config()["checkpoint_storage"], directory.store.path)
        storages.of(None)
    except (KeyError, ValueError) as error:
        raise StoreError(
            f"the checkpoints of experiment {directory.id} can't be reached: {error}"
        ) from error
    return storages


def needed_by_search(directory: ExperimentDir, facts: ExperimentFacts) -> Collection[str]:
    """The checkpoints from which an unfinished search may start a trial."""
    if not facts.searching:
        return ()
    from detslurm.searcher import Search, State
    from detslurm.store import EventLog

    log: EventLog[State] = EventLog(directory.search, Search(directory.config()))
    return log.catch_up().needed_checkpoints()


def unreachable_problems(found: Mapping[str, str]) -> list[str]:
    """The message about checkpoints in storages that are invisible from here."""
    counts = Counter(found.values())
    return [
        f"{counted(count, 'checkpoint')} in {where} {'is' if count == 1 else 'are'} left alone:"
        f" {where} is empty or can't be seen from here"
        for where, count in counts.items()
    ]
