"""Every experiment as a row, as a listing by files alone gives it."""

from __future__ import annotations

from detslurm.store import ExperimentRow, NotFound, Store, fold_experiment


def rows_of(store: Store) -> list[ExperimentRow]:
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
