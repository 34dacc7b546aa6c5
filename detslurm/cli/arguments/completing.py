"""What Tab offers: ids with names, keys of the configuration, columns, files.

Imported only while a shell completes a command line. A mistake here shows nothing rather than a
traceback in the middle of what the user types.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from itertools import islice
from typing import Any, get_args, get_origin

from click.shell_completion import CompletionItem

_MOST = 50  # the newest; more would scroll away
_PATIENCE = 2.0  # seconds for the queue

Items = list[CompletionItem]


def _offer(found: Iterator[tuple[str, str]], incomplete: str) -> Items:
    """Those that begin with what was typed; none if the store can't be read."""
    items: Items = []
    with contextlib.suppress(Exception):
        for value, text in found:
            if value.startswith(incomplete):
                items.append(CompletionItem(value, help=text or None))
    return items


def experiments(incomplete: str) -> Items:
    """Ids with names, and names, the newest first."""
    before, comma, last = incomplete.rpartition(",")
    items = _offer(_experiments(by_name=bool(last) and not last[0].isdigit()), last)
    return [CompletionItem(f"{before}{comma}{item.value}", help=item.help) for item in items]


def _experiments(*, by_name: bool) -> Iterator[tuple[str, str]]:
    from detslurm.sdk.client import Client
    from detslurm.sdk.experiments.finding import names

    found = list(islice(names(Client(warn=lambda text: None)), None if by_name else _MOST))
    yield "last", "the newest"
    if by_name:
        yield from dict.fromkeys((name, "") for _, name in found)
    else:
        yield from ((str(number), name) for number, name in found)


def trials(incomplete: str) -> Items:
    """The ids of the newest experiments' trials."""
    return _offer(_trials(), incomplete)


def _trials() -> Iterator[tuple[str, str]]:
    from detslurm.sdk.client import Client
    from detslurm.sdk.experiments.finding import newest_trials

    yield "last", "the newest"
    for number, trial in newest_trials(Client(warn=lambda text: None), _MOST):
        yield str(trial), f"experiment {number}"


def jobs(incomplete: str) -> Items:
    """The ids of one's own jobs in the queue, those that were submitted last first."""
    return _offer(_jobs(), incomplete)


def _jobs() -> Iterator[tuple[str, str]]:
    from detslurm._access import user_name
    from detslurm.sdk.client import Client

    with _soon(_PATIENCE):
        rows = Client(warn=lambda text: None).queues.cluster("auto").queue()
    mine = [row for row in rows if row.user == user_name()]
    mine.sort(key=lambda row: int(row.job_id), reverse=True)
    yield from {row.job_id: row.comment or row.name for row in mine[:_MOST]}.items()


@contextlib.contextmanager
def _soon(seconds: float) -> Iterator[None]:
    """Break off what takes longer: who pressed Tab can't type meanwhile."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def config_keys(incomplete: str) -> Items:
    """Keys of the configuration with an equals sign."""
    from detslurm.config import ExperimentConfig

    return _offer(((f"{key}=", "") for key in _keys(ExperimentConfig, "")), incomplete)


def _keys(kind: Any, path: str) -> Iterator[str]:
    import msgspec

    for field in msgspec.structs.fields(kind):
        name = f"{path}{field.encode_name}"
        below = dict.fromkeys(key for one in _structs(field.type) for key in _keys(one, f"{name}."))
        yield from below or [name]


def _structs(kind: Any) -> Iterator[Any]:
    """The sections that a value of this type may be; lists have no keys."""
    if hasattr(kind, "__struct_fields__"):
        yield kind
    elif get_origin(kind) is not tuple:
        for one in get_args(kind):
            yield from _structs(one)


def columns(incomplete: str) -> Items:
    """Names of columns with commas."""
    from detslurm.cli.experiment.list import COLUMNS

    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in COLUMNS if name.startswith(last)]


def checkpoints(incomplete: str) -> Items:
    """The ids of the newest experiments' checkpoints, those that were saved last first."""
    before, comma, last = incomplete.rpartition(",")
    items = _offer(_checkpoints(), last)
    return [CompletionItem(f"{before}{comma}{item.value}", help=item.help) for item in items]


def _checkpoints() -> Iterator[tuple[str, str]]:
    from detslurm.sdk.client import Client

    client = Client(warn=lambda text: None)
    with _soon(_PATIENCE):
        found = client.checkpoints(list(islice(client.store.newest_first(), _MOST)))
    for one in reversed(found):
        yield one.uuid, f"trial {one.trial_id}, {one.steps_completed} batches"


def models(incomplete: str) -> Items:
    """Names of models, with what they are."""
    return _offer(_models(), incomplete)


def _models() -> Iterator[tuple[str, str]]:
    from detslurm.sdk.client import Client

    for model in Client(warn=lambda text: None).list_models(archived=True):
        yield model.name, model.description.partition("\n")[0]


def templates(incomplete: str) -> Items:
    """Names of templates."""
    return _offer(_templates(), incomplete)


def _templates() -> Iterator[tuple[str, str]]:
    from detslurm.sdk.client import Client

    for one in Client(warn=lambda text: None).list_templates():
        yield one.name, "the group's" if one.shared else ""


def templates_and_files(incomplete: str) -> Items:
    """Names of templates, and whatever the shell finds where none begins so."""
    return templates(incomplete) or files(incomplete)


def site_examples(incomplete: str) -> Items:
    """Names of the site profiles that come with detslurm."""
    return _packaged("sites", ".yaml", incomplete)


def batch_scripts(incomplete: str) -> Items:
    """Names of the batch scripts that come with detslurm."""
    return _packaged("batch", ".sbatch", incomplete)


def _packaged(folder: str, suffix: str, incomplete: str) -> Items:
    from detslurm.config.templates import packaged, purpose

    texts = packaged(folder, suffix)
    return _offer(((name, purpose(text)) for name, text in texts.items()), incomplete)


def files(incomplete: str) -> Items:
    """Whatever the shell finds."""
    return [CompletionItem(incomplete, type="file")]
