"""Every experiment of a store as a row; of finished ones the index is all that is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from detslurm.sdk.queues import Queues
from detslurm.sdk.snapshot import ExperimentSnapshot, attach_job_status, read
from detslurm.store import ExperimentRow, NotFound, Store, StoreError
from detslurm.store.index import Catalog


def rows(store: Store, queues: Queues, warn: Callable[[str], None]) -> list[ExperimentRow]:
    """Rows of all experiments, ascending; one look at the queue for all that are unfinished.

    What can't be read is left out, and said.
    """
    catalog = Catalog(store)
    for problem in catalog.problems:
        warn(f"left out: {problem}")
    open_ones = list(_readable(store, catalog.unfinished, warn))
    attach_job_status(open_ones, queues)
    fresh = [one.view.row() for one in open_ones]
    catalog.settle(fresh)
    return sorted({**catalog.finished, **{r.id: r for r in fresh}}.values(), key=lambda r: r.id)


def _readable(
    store: Store, ids: Iterable[int], warn: Callable[[str], None]
) -> Iterator[ExperimentSnapshot]:
    """Those that exist, for their submission came so far, and can be read."""
    unreadable: dict[int, StoreError] = {}
    for number in ids:
        try:
            yield read(store.experiment(number))
        except NotFound:
            continue
        except StoreError as error:
            unreadable[number] = error
    if unreadable:
        more = ", ..." if len(unreadable) > 10 else ""
        names = ", ".join(map(str, list(unreadable)[:10])) + more
        first = next(iter(unreadable.values()))
        warn(f"left out, for they can't be read: experiment {names} ({first})")
