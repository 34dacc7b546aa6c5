"""Every experiment of a store as a row, finished ones without looking at their trials."""

from __future__ import annotations

from detslurm.sdk.queues import Queues
from detslurm.sdk.survey import survey

from detslurm.store import ExperimentRow, NotFound, Store


def rows(store: Store, queues: Queues) -> list[ExperimentRow]:
    """Rows of all experiments, ascending; one look at the queue for all that are unfinished."""
    directories = []
    for number in store.ledger_state().experiments():
        try:
            directories.append(store.experiment(number))
        except NotFound:
            continue  # its submission broke off before it became visible
    return [one.view.row() for one in survey(directories, queues)]
