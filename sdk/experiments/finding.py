"""Experiments and trials by the words that people type in place of an id.

The functions raise `NotFound` for a word that stands for nothing.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from detslurm.sdk.errors import LifecycleError
from detslurm.store import ExperimentFacts, NotFound, StoreError, fold_facts

if TYPE_CHECKING:
    from detslurm.sdk.client import Client

_FROM_THE_END = re.compile(r"@-([1-9]\d{0,5})")
_GLOB = re.compile(r"[*?\[]")
_SHOWN = 10  # candidates of a message
_NUMBER = re.compile(r"[-+]?[0-9]+")
_TRIAL_WORDS = "an id, `last`, or `@-2` for the second newest"
_EXPERIMENT_WORDS = (
    "an id, a name, a glob of names in quotes, `last`, or `@-2` for the second newest"
)


def experiments_of(client: Client, word: int | str, task: str | None = None) -> list[int]:
    """Return the ids of the experiments that a word stands for: an id, which need not exist,
    `last`, `@-2` for the second newest (of tasks of the kind `task`, if given), a name or a glob.
    Raises `LifecycleError` if several have the very name, `ValueError` for an impossible id."""
    text = str(word).strip()
    if _NUMBER.fullmatch(text):
        return [_positive(text)]
    place = from_the_end(text)
    if place is not None:
        return [newest_experiment(client, place, task)]
    if not text or text.startswith("@"):
        raise ValueError(f"{text!r} is not {_EXPERIMENT_WORDS}")
    return named(client, text)


def experiment_of(client: Client, word: int | str, task: str | None = None) -> int:
    """Return the id of the one experiment that a word stands for; `LifecycleError` for several."""
    found = experiments_of(client, word, task)
    if len(found) > 1:
        raise LifecycleError(ambiguous(client, str(word).strip(), found))
    return found[0]


def trial_of(client: Client, word: int | str) -> int:
    """Return the id of the trial that a word stands for: an id, which need not exist, `last` or
    `@-2`. Raises `ValueError` for a word that can't be an id."""
    text = str(word).strip()
    place = from_the_end(text)
    if place is not None:
        return newest_trial(client, place)
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not the id of a trial: {_TRIAL_WORDS}")
    return _positive(text)


def _positive(text: str) -> int:
    if not text.isdigit() or len(text) > 15 or int(text) < 1:
        raise ValueError(f"{text!r} is not an id: ids are whole numbers from 1")
    return int(text)


def from_the_end(word: str) -> int | None:
    """The place from the newest: 1 for `last` and `@-1`; None for another kind of word."""
    if word == "last":
        return 1
    found = _FROM_THE_END.fullmatch(word)
    return int(found[1]) if found else None


def newest_experiment(client: Client, place: int = 1, task: str | None = None) -> int:
    """Return the id of the user's newest experiment (or task of a kind), or of that at `place`."""
    for passed, (number, _) in enumerate(_newest_first(client, task), 1):
        if passed == place:
            return number
    raise NotFound(_too_few(f"{task or 'experiment'}s", client, place))


def newest_trial(client: Client, place: int = 1) -> int:
    """Return the id of the newest trial of the user's own experiments, or of that at `place`."""
    passed = 0
    for number, _ in _newest_first(client):
        ids = sorted(trial.id for trial in client.stored(number).trials())
        if passed + len(ids) >= place:
            return ids[passed - place]
        passed += len(ids)
    raise NotFound(_too_few("trials", client, place))


def newest_trials(client: Client, count: int) -> list[tuple[int, int]]:
    """Return up to `count` of the newest trials of the user's own experiments, each after its
    experiment's id; trials that a search has yet to create are among them."""
    found: list[tuple[int, int]] = []
    for number, facts in _newest_first(client):
        found += [(number, trial) for trial in sorted(facts.trial_ids, reverse=True)]
        if len(found) >= count:
            break
    return found[:count]


def named(client: Client, pattern: str) -> list[int]:
    """Return the id of the experiment of this name, or of all whose names match a glob, ascending.
    A name that an experiment has is no glob. Raises `LifecycleError` if several have the name."""
    known = dict(names(client))
    found = [number for number, name in known.items() if name == pattern]
    is_glob = not found and _GLOB.search(pattern) is not None
    if is_glob:
        found = [n for n, name in known.items() if fnmatch.fnmatchcase(name, pattern)]
    if not found:
        what = "name matches" if is_glob else "experiment is called"
        raise NotFound(f"no {what} {pattern!r} in {client.store.path}")
    found.sort()
    if not is_glob and len(found) > 1:
        raise LifecycleError(ambiguous(client, pattern, found))
    return found


def ambiguous(client: Client, pattern: str, found: list[int]) -> str:
    """A message that names the experiments that a word may mean."""
    known = dict(names(client))
    shown = ", ".join(f"{number} ({known.get(number, '')})" for number in found[-_SHOWN:])
    more = f" and {len(found) - _SHOWN} older ones" if len(found) > _SHOWN else ""
    return f"{pattern!r} may be experiment {shown}{more}: give the id"


def _too_few(what: str, client: Client, place: int) -> str:
    few = f"no {what} of yours" if place == 1 else f"fewer than {place} {what} of yours"
    return f"there are {few} in {client.store.path}"


def _newest_first(client: Client, task: str | None = None) -> Iterator[tuple[int, ExperimentFacts]]:
    """The user's own experiments, or tasks of a kind, without the deleted ones."""
    if text := client.missing():
        raise NotFound(text)
    for number in client.store.newest_first():
        try:
            directory = client.directory(number)
            if directory.foreign_owner() is None:
                facts = fold_facts(directory)
                if facts.created.task == task and not facts.desired.deleted:
                    yield number, facts
        except StoreError:
            continue


def names(client: Client) -> Iterator[tuple[int, str]]:
    """Yield ids and names of all experiments, newest first; finished ones come from the index."""
    if text := client.missing():
        raise NotFound(text)
    for one in client.store.catalog().newest_first():
        if not isinstance(one, int):
            if one.state != "DELETED":
                yield one.id, one.name
            continue
        try:
            facts = fold_facts(client.directory(one))
        except StoreError:
            continue
        if not facts.desired.deleted:
            yield one, str(facts.desired.fields.get("name", facts.created.name) or "")
