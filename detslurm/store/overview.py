"""Every experiment as a row, from files alone."""

from __future__ import annotations

from detslurm.store.errors import NotFound
from detslurm.store.reading import fold_experiment
from detslurm.store.store import Store
from detslurm.store.views import ExperimentRow


def overview(store: Store) -> list[ExperimentRow]:
    """Rows of all experiments but deleted ones, by id; only unfinished ones are folded."""
    catalog = store.catalog()
    fresh: list[ExperimentRow] = []
    for number in catalog.unfinished:
        try:
            fresh.append(fold_experiment(store.experiment(number)).row())
        except NotFound:
            continue  # its submission broke off before it became visible
    catalog.settle(fresh)
    rows = {**catalog.finished, **{row.id: row for row in fresh}}
    return [rows[number] for number in sorted(rows) if rows[number].state != "DELETED"]
