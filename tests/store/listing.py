"""Every experiment as a row, as a listing by files alone gives it."""

from __future__ import annotations

from detslurm.store import ExperimentRow, NotFound, Store, fold_experiment


def rows_of(store: Store) -> list[ExperimentRow]:
    """Rows of all experiments but deleted ones, by id; only unfinished ones are folded."""
    catalog = store.catalog()
    rows: list[ExperimentRow] = []
    fresh: list[ExperimentRow] = []
    for one in catalog.newest_first():
        try:
            if isinstance(one, int):
                one = fold_experiment(store.experiment(one)).row()
                fresh.append(one)
        except NotFound:
            continue  # its submission broke off before it became visible
        rows.append(one)
    catalog.settle(fresh)
    return [row for row in reversed(rows) if row.state != "DELETED"]
