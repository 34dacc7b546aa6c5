"""Completion by Tab: ids with names, keys of the configuration, columns, files.

Imported only while a shell completes a command line. A mistake here shows nothing rather than a
traceback in the middle of what the user types.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from detslurm.sdk.client import Client

_MOST = 50  # the newest; more would scroll away
_PATIENCE = 4.0  # seconds: a person who pressed Tab can't type meanwhile

Items = list[CompletionItem]
Offers = Iterable[tuple[str, str]]  # values, and what people see beside them


def complete(kind: str, incomplete: str) -> Items:
    """The offers of a kind that begin with the text after the last comma.

    None are shown if the store can't be read; names of files where `kind` ends in "files".
    """
    before, comma, last = incomplete.rpartition(",")
    items: Items = []
    with contextlib.suppress(Exception):
        signal.signal(signal.SIGALRM, _give_up)
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
        offers = _experiments(last) if kind == "experiments" else _OFFERS[kind]()
        for value, text in offers:
            if value.startswith(last):
                items.append(CompletionItem(f"{before}{comma}{value}", help=text or None))
    signal.setitimer(signal.ITIMER_REAL, 0)
    return items or ([CompletionItem(incomplete, type="file")] if kind.endswith("files") else [])


def _give_up(number: int, frame: object) -> None:
    raise TimeoutError


def _client() -> Client:
    from detslurm.sdk.client import Client

    return Client(warn=lambda text: None)


def _experiments(typed: str) -> Offers:
    """Ids with names, the newest first; names where a name was begun."""
    from detslurm.sdk.experiments.finding import names

    by_name = bool(typed) and not typed[0].isdigit()
    newest = list(islice(names(_client()), None if by_name else _MOST))
    yield "last", "the newest"
    if by_name:
        yield from dict.fromkeys((name, "") for _, name in newest)
    else:
        yield from ((str(number), name) for number, name in newest)


def _trials() -> Offers:
    from detslurm.sdk.experiments.finding import newest_trials

    yield "last", "the newest"
    for number, trial in newest_trials(_client(), _MOST):
        yield str(trial), f"experiment {number}"


def _jobs() -> Offers:
    """The ids of the user's own jobs in the queue, those that were submitted last first."""
    from detslurm._base.access import user_name

    rows = _client().queues.cluster("auto").queue()
    mine = [row for row in rows if row.user == user_name()]
    mine.sort(key=lambda row: int(row.job_id), reverse=True)
    return {row.job_id: row.comment or row.name for row in mine[:_MOST]}.items()


def _config_keys() -> Offers:
    from detslurm.sdk.parts import config_keys

    keys = dict.fromkeys(config_keys())
    sections = {key.rpartition(".")[0] for key in keys}
    return ((f"{key}=", "") for key in keys if key not in sections)


def _columns() -> Offers:
    from detslurm.cli.experiment.list import COLUMNS

    return ((name, "") for name in COLUMNS)


def _checkpoints() -> Offers:
    """The ids of the newest experiments' checkpoints, those that were saved last first."""
    client = _client()
    newest = client.checkpoints(list(islice(client.store.newest_first(), _MOST)))
    return ((c.uuid, f"trial {c.trial_id}, {c.steps_completed} batches") for c in reversed(newest))


def _models() -> Offers:
    models = _client().list_models(archived=True)
    return ((model.name, model.description.partition("\n")[0]) for model in models)


def _templates() -> Offers:
    found = _client().list_templates()
    return ((template.name, "the group's" if template.shared else "") for template in found)


def _packaged(folder: str, suffix: str) -> Offers:
    from detslurm.sdk.parts import packaged, purpose

    return ((name, purpose(text)) for name, text in packaged(folder, suffix).items())


_OFFERS: dict[str, Callable[[], Offers]] = {
    "trials": _trials,
    "jobs": _jobs,
    "config_keys": _config_keys,
    "columns": _columns,
    "checkpoints": _checkpoints,
    "models": _models,
    "templates": _templates,
    "templates_and_files": _templates,
    "files": tuple,
    "site_examples": lambda: _packaged("sites", ".yaml"),
    "batch_scripts": lambda: _packaged("batch", ".sbatch"),
}
