"""Every experiment of a store as a row; of finished ones the index is all that is read."""

from __future__ import annotations

from detslurm.sdk.queues import Queues
from detslurm.sdk.survey import survey
from detslurm.store import ExperimentDir, ExperimentRow, NotFound, Store
from detslurm.store.index import Catalog


def rows(store: Store, queues: Queues) -> list[ExperimentRow]:
    """Rows of all experiments, ascending; one look at the queue for all that are unfinished."""
    catalog = Catalog(store)
    open_ones = survey(_visible(store, catalog.unfinished), queues)
    fresh = [one.view.row() for one in open_ones]
    catalog.settle(fresh)
    return sorted({**catalog.finished, **{r.id: r for r in fresh}}.values(), key=lambda r: r.id)


def _visible(store: Store, ids: list[int]) -> list[ExperimentDir]:
    """Those whose submission came so far that they exist."""
    found = []
    for number in ids:
        try:
            found.append(store.experiment(number))
        except NotFound:
            continue
    return found
