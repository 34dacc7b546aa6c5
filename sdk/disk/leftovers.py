"""What crashes have left behind: files that belong to nothing any more, by evidence.

What is not known to be over stays: a checkpoint that a run may be writing now, what somebody else's
records may name, what can't be read. Directories are listed by their exact names, none is searched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from detslurm.store import ExperimentDir, ExperimentFacts, Store, fold_trial, fs
from detslurm.store.collection import resumed_from
from detslurm.store.errors import TORN, Problem
from detslurm.store.job_claims import claims_folder
from detslurm.store.reading import started_ids, started_in_run

Kind = Literal[
    "deleted checkpoint",  # its record says so, and its files are there
    "unfinished upload",  # of a run that is over, and never became a checkpoint
    "temporary file",
    "interrupted deletion",
    "interrupted submission",
    "unrecorded checkpoint",  # nothing in this store knows it
    "unused environment",  # packed for experiments that are over
]

DAY: Final = 86400.0
"""What is younger by the clock of its file server may still be in somebody's hands."""

PARTIAL: Final = ".partial"
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_TEMPORARY: Final = re.compile(r"\..*\.(?P<host>[^/]*?)-(?P<pid>\d+)-\d+-[0-9a-f]{8}\.tmp")


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """Something that nobody needs any more.

    Attributes:
        kind: What it is.
        path: Where it is.
        experiment: The id of its experiment; None for what belongs to none.
        size: Its bytes.
    """

    kind: Kind
    path: str
    experiment: int | None = None
    size: int = 0


@dataclass
class Known:
    """The checkpoints that an experiment's records name: those in use, and those that are over.

    `elsewhere` says which of them are in another storage than the configured one. `problems` are
    records that can't be read, which may name others.
    """

    used: set[str] = field(default_factory=set)
    over: dict[str, Kind] = field(default_factory=dict)
    elsewhere: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def over_by_storage(self) -> Iterator[tuple[dict[str, Any] | None, dict[str, Kind]]]:
        """Those that are over, by where they are; None is the configured storage."""
        sections = [None, *self.elsewhere.values()]
        for place in {repr(section): section for section in sections}.values():
            found = {u: kind for u, kind in self.over.items() if self.elsewhere.get(u) == place}
            if found:
                yield place, found


def known_checkpoints(directory: ExperimentDir, facts: ExperimentFacts) -> Known:
    """What the records say of everything that the experiment's runs began to save."""
    found = Known()
    for number in started_ids(directory, facts):
        _add_trial(found, directory, facts, number)
    return found


def _add_trial(found: Known, directory: ExperimentDir, facts: ExperimentFacts, number: int) -> None:
    trial = directory.trial(number)
    runs = trial.runs()  # before the logs: what has no end record now may still write
    context = facts.context(number)
    view = fold_trial(trial, context)
    saved = {checkpoint.uuid: checkpoint.state for checkpoint in view.checkpoints}
    found.elsewhere |= {c.uuid: c.storage for c in view.checkpoints if c.storage is not None}
    found.problems += (problem for problem in view.problems if problem.reason != TORN)
    claimed = resumed_from(runs, context)  # a collector leaves the files to a run that was as fast
    for uuid, state in saved.items():
        if state == "DELETED" and uuid not in claimed:
            found.over[uuid] = "deleted checkpoint"
        else:
            found.used.add(uuid)
    for run in runs:
        places = started_in_run(trial, run.number)
        found.elsewhere |= {uuid: place for uuid, place in places.items() if place is not None}
        begun = [uuid for uuid in places if uuid not in saved]
        if run.end is None or view.problems:  # a record that can't be read may name it
            found.used.update(begun)
        else:
            found.over |= dict.fromkeys(begun, "unfinished upload")


def in_storage(
    base: Path, names: set[str] | None, over: Mapping[str, Kind], number: int
) -> Iterator[Leftover]:
    """What lies in a storage although its experiment's records say that it is over.

    `names` are those that were listed there; without them each is asked for by name.
    """
    for uuid, kind in over.items():
        for name in (uuid, uuid + PARTIAL):
            if fs.exists(base / name) if names is None else name in names:
                yield Leftover(
                    kind=kind,
                    path=str(base / name),
                    experiment=number,
                    size=tree_size(base / name),
                )


def unrecorded(base: Path, names: set[str], known: set[str]) -> Iterator[Leftover]:
    """Old checkpoints of this user that no record of the store names."""
    now = fs.time_there(base)
    for name in sorted(names):
        uuid = name.removesuffix(PARTIAL)
        if _UUID.fullmatch(uuid) and uuid not in known and _is_old(base / name, now):
            yield Leftover(
                kind="unrecorded checkpoint", path=str(base / name), size=tree_size(base / name)
            )


def temporary_names(folder: Path) -> list[str]:
    """The temporary names in a directory, also those that somebody needs now."""
    return [name for name in fs.names_in(folder) if name.endswith(".tmp")]


def temporary_files(
    folder: Path, found: Sequence[str], number: int | None = None
) -> Iterator[Leftover]:
    """The temporary names of a directory whose makers are dead."""
    now = fs.time_there(folder) if found else None
    for name in found:
        made = _TEMPORARY.fullmatch(name)
        if made is not None and _is_old(folder / name, now) and not _lives(made):
            path = folder / name
            yield Leftover(
                kind="temporary file", path=str(path), experiment=number, size=tree_size(path)
            )


def never_began(directory: ExperimentDir) -> bool:
    """Whether its submission died, or is still busy: no job of it began."""
    trials = directory.path / "trials"
    began = any(fs.names_in(trials / bucket) for bucket in fs.names_in(trials))
    return not (began or directory.was_created())


def interrupted_submission(directory: ExperimentDir) -> Iterator[Leftover]:
    """What a submission left that died before its experiment was there: no job of it began.

    The directory itself stays: its number is not given again.
    """
    content = [directory.path / name for name in fs.names_in(directory.path)]
    if not (content and never_began(directory)) or fs.names_in(directory.jobs):
        return
    now = fs.time_there(directory.path)
    if all(_is_old(path, now) for path in content):
        yield Leftover(
            kind="interrupted submission",
            path=str(directory.path),
            experiment=directory.id,
            size=sum(map(tree_size, content)),
        )


def unused_environments(folder: Path, used: Collection[str]) -> Iterator[Leftover]:
    """Archives of environments that no unfinished experiment stages, and none did for a day."""
    archives = [folder / name for name in fs.names_in(folder) if name.endswith(".tar")]
    now = fs.time_there(folder) if archives else None
    for path in archives:
        if str(path) not in used and _is_old(path, now):
            yield Leftover(kind="unused environment", path=str(path), size=tree_size(path))


def folders_of(directory: ExperimentDir, facts: ExperimentFacts) -> list[Path]:
    """The directories of an experiment that temporary names may be in."""
    trials = [directory.trial(number).path for number in started_ids(directory, facts)]
    return [directory.path, directory.log.path, directory.search, *trials]


def folders_of_store(store: Store) -> list[Path]:
    """Those that belong to no experiment."""
    own = [store.own("index.json").with_suffix(".parts"), store.own("environments")]
    return [store.path, store.ledger.log.path, store.models.log.path, claims_folder(store), *own]


def _is_old(path: Path, now: float | None) -> bool:
    """Whether it is this user's and nothing has changed in it for a day, by its server's clock."""
    try:
        state = path.lstat()
    except OSError:
        return False
    return now is not None and state.st_uid == os.geteuid() and now - state.st_mtime > DAY


def _lives(made: re.Match[str]) -> bool:
    """Whether its maker may still live: on other nodes only its age speaks."""
    if made["host"] != os.uname().nodename:
        return False
    return Path(f"/proc/{made['pid']}").exists()


def tree_size(path: Path) -> int:
    """Bytes in one leftover."""
    from detslurm.storage import list_resources

    try:
        return sum(list_resources(path).values()) if path.is_dir() else path.lstat().st_size
    except OSError:
        return 0
