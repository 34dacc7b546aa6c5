"""Completion by Tab: ids with names, keys of the configuration, columns, files.

Imported only while a shell completes a command line. A mistake here shows nothing rather than a
traceback in the middle of what the user types.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from detslurm.sdk.client import Client

_MOST = 50  # the newest; more would scroll away
_PATIENCE = 2.0  # seconds for the queue

Items = list[CompletionItem]
Offers = Iterator[tuple[str, str]]  # values, and what people see beside them


def complete(kind: str, incomplete: str) -> Items:
    """The offers of a kind that begin with the text after the last comma.

    None are shown if the store can't be read; names of files where `kind` ends in "files".
    """
    before, comma, last = incomplete.rpartition(",")
    items: Items = []
    with contextlib.suppress(Exception):
        offers = _experiments(last) if kind == "experiments" else _OFFERS[kind]()
        for value, text in offers:
            if value.startswith(last):
                items.append(CompletionItem(f"{before}{comma}{value}", help=text or None))
    return items or ([CompletionItem(incomplete, type="file")] if kind.endswith("files") else [])


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
    """The ids of the newest experiments' trials."""
    from detslurm.sdk.experiments.finding import newest_trials

    yield "last", "the newest"
    for number, trial in newest_trials(_client(), _MOST):
        yield str(trial), f"experiment {number}"


def _jobs() -> Offers:
    """The ids of the user's own jobs in the queue, those that were submitted last first."""
    from detslurm._base.access import user_name

    with _soon(_PATIENCE):
        rows = _client().queues.cluster("auto").queue()
    mine = [row for row in rows if row.user == user_name()]
    mine.sort(key=lambda row: int(row.job_id), reverse=True)
    yield from {row.job_id: row.comment or row.name for row in mine[:_MOST]}.items()


@contextlib.contextmanager
def _soon(seconds: float) -> Iterator[None]:
    """Interrupt a longer query: a person who pressed Tab can't type meanwhile."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _config_keys() -> Offers:
    """Keys of the configuration with an equals sign."""
    from detslurm.sdk.parts import config_keys

    keys = dict.fromkeys(config_keys())
    sections = {key.rpartition(".")[0] for key in keys}
    yield from ((f"{key}=", "") for key in keys if key not in sections)


def _columns() -> Offers:
    """Names of columns with commas."""
    from detslurm.cli.experiment.list import COLUMNS

    yield from ((name, "") for name in COLUMNS)


def _checkpoints() -> Offers:
    """The ids of the newest experiments' checkpoints, those that were saved last first."""
    client = _client()
    with _soon(_PATIENCE):
        newest = client.checkpoints(list(islice(client.store.newest_first(), _MOST)))
    for checkpoint in reversed(newest):
        text = f"trial {checkpoint.trial_id}, {checkpoint.steps_completed} batches"
        yield checkpoint.uuid, text


def _models() -> Offers:
    """Names of models with their descriptions."""
    for model in _client().list_models(archived=True):
        yield model.name, model.description.partition("\n")[0]


def _templates() -> Offers:
    """Names of templates."""
    for template in _client().list_templates():
        yield template.name, "the group's" if template.shared else ""


def _packaged(folder: str, suffix: str) -> Offers:
    from detslurm.sdk.parts import packaged, purpose

    yield from ((name, purpose(text)) for name, text in packaged(folder, suffix).items())


_OFFERS: dict[str, Callable[[], Offers]] = {
    "trials": _trials,
    "jobs": _jobs,
    "config_keys": _config_keys,
    "columns": _columns,
    "checkpoints": _checkpoints,
    "models": _models,
    "templates": _templates,
    "templates_and_files": _templates,
    "files": lambda: iter(()),
    "site_examples": lambda: _packaged("sites", ".yaml"),
    "batch_scripts": lambda: _packaged("batch", ".sbatch"),
}
