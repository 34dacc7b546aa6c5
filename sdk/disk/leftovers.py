"""The remains of crashes: files that belong to nothing any more, by evidence.

Everything that is not known to be over stays: a checkpoint that a run may be writing now, the files
of other users' records, unreadable files. Directories are listed by exact names, not searched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from detslurm.storage import list_resources
from detslurm.store import ExperimentDir, ExperimentFacts, Store, fold_trial, fs
from detslurm.store.errors import TORN, Problem
from detslurm.store.gc import resumed_from
from detslurm.store.provenance import FOLDER
from detslurm.store.reading import outputs_of, started_ids, started_in_run
from detslurm.store.unmanaged import claims_folder

Kind = Literal[
    "deleted checkpoint",  # its record is there, and so are its files
    "unfinished upload",  # of a run that is over, and never became a checkpoint
    "temporary file",
    "interrupted deletion",
    "interrupted submission",
    "unrecorded checkpoint",  # no record of this store names it
    "unused environment",  # packed for experiments that are over
    "unused record",  # of what deleted experiments ran
    "interrupted check",  # of a `selftest` or `doctor` that was killed
]

DAY: Final = 86400.0
"""A process may still need a file that is younger, by the clock of its file server."""

PARTIAL: Final = ".partial"
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_CHECK: Final = re.compile(r"(selftest|doctor)-[0-9a-f]{12}")
_TEMPORARY: Final = re.compile(r"\..*\.(?P<host>[^/]*?)-(?P<pid>\d+)-\d+-[0-9a-f]{8}\.tmp")


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """A file or directory that is no longer needed, with its size in bytes; `experiment` is None if
    it belongs to none."""

    kind: Kind
    path: str
    experiment: int | None = None
    size: int = 0


def _leftover(kind: Kind, path: Path, experiment: int | None = None) -> Leftover:
    return Leftover(kind=kind, path=str(path), experiment=experiment, size=tree_size(path))


@dataclass
class Known:
    """The checkpoints that records name, with the storage of those `elsewhere` than in the
    configured one, and the unreadable records, which may name others."""

    used: set[str] = field(default_factory=set)
    over: dict[str, Kind] = field(default_factory=dict)
    elsewhere: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def over_by_storage(self) -> Iterator[tuple[dict[str, Any] | None, dict[str, Kind]]]:
        """Those that are over, by their storage; None is the configured storage."""
        for place in {repr(place): place for place in (None, *self.elsewhere.values())}.values():
            over = {u: kind for u, kind in self.over.items() if self.elsewhere.get(u) == place}
            yield place, over


def known_checkpoints(directory: ExperimentDir, facts: ExperimentFacts) -> Known:
    """All checkpoints that the experiment's runs began to save."""
    known = Known()
    for number in started_ids(directory, facts):
        _add_trial(known, directory, facts, number)
    return known


def _add_trial(known: Known, directory: ExperimentDir, facts: ExperimentFacts, number: int) -> None:
    trial = directory.trial(number)
    runs = trial.runs()  # before the logs: a run without an end record may still write
    context = facts.context(number)
    view = fold_trial(trial, context)
    saved = {checkpoint.uuid: checkpoint.state for checkpoint in view.checkpoints}
    known.elsewhere |= {c.uuid: c.storage for c in view.checkpoints if c.storage is not None}
    known.problems += (problem for problem in view.problems if problem.reason != TORN)
    claimed = resumed_from(runs, context)  # a collector leaves the files to a run that was as fast
    for uuid, state in saved.items():
        if state == "DELETED" and uuid not in claimed:
            known.over[uuid] = "deleted checkpoint"
        else:
            known.used.add(uuid)
    known.used |= outputs_of(runs).keys() - known.over.keys()
    for run in runs:
        places = started_in_run(trial, run.number)
        known.elsewhere |= {uuid: place for uuid, place in places.items() if place is not None}
        begun = [uuid for uuid in places if uuid not in saved]
        if run.end is None or view.problems:  # an unreadable record may name it
            known.used.update(begun)
        else:
            known.over |= dict.fromkeys(begun, "unfinished upload")


def in_storage(
    base: Path, names: set[str] | None, over: Mapping[str, Kind], number: int
) -> Iterator[Leftover]:
    """The files of checkpoints that are over: of listed names, or else each is looked up."""
    for uuid, kind in over.items():
        for name in (uuid, uuid + PARTIAL):
            if fs.exists(base / name) if names is None else name in names:
                yield _leftover(kind, base / name, number)


def _aged(
    kind: Kind, folder: Path, names: Sequence[str], number: int | None = None
) -> Iterator[Leftover]:
    """Those of these names that are this user's and have not changed for a day."""
    now = fs.time_there(folder) if names else None
    for name in names:
        if _is_old(folder / name, now):
            yield _leftover(kind, folder / name, number)


def unrecorded(base: Path, names: set[str], known: set[str]) -> Iterator[Leftover]:
    """Old checkpoints of this user that no record of the store names."""
    uuids = {name: name.removesuffix(PARTIAL) for name in sorted(names)}
    strange = [n for n, uuid in uuids.items() if _UUID.fullmatch(uuid) and uuid not in known]
    return _aged("unrecorded checkpoint", base, strange)


def temporary_names(folder: Path) -> list[str]:
    """The temporary names in a directory, also those that are in use."""
    return [name for name in fs.names_in(folder) if name.endswith(".tmp")]


def temporary_files(
    folder: Path, names: Sequence[str], number: int | None = None
) -> Iterator[Leftover]:
    """The temporary files of a directory whose processes are dead."""
    made = ((name, _TEMPORARY.fullmatch(name)) for name in names)
    dead = [name for name, process in made if process is not None and not _lives(process)]
    return _aged("temporary file", folder, dead, number)


def never_began(directory: ExperimentDir) -> bool:
    """Whether its submission died, or is still busy: no job of it began."""
    trials = directory.path / "trials"
    began = any(fs.names_in(trials / bucket) for bucket in fs.names_in(trials))
    return not (began or directory.was_created())


def interrupted_submission(directory: ExperimentDir) -> Iterator[Leftover]:
    """The files of a submission that died. The directory stays: its number isn't given again."""
    content = [directory.path / name for name in fs.names_in(directory.path)]
    if not (content and never_began(directory)) or fs.names_in(directory.jobs):
        return
    now = fs.time_there(directory.path)
    if all(_is_old(path, now) for path in content):
        yield _leftover("interrupted submission", directory.path, directory.id)


def unused(store: Store, archives: Collection[str], digests: Collection[str]) -> Iterator[Leftover]:
    """Archives of environments with other paths, and records of code and software with other
    digests than those in use, which no submission used for a day."""
    folder = store.own("environments")
    tars = [name for name in fs.names_in(folder) if name.endswith(".tar")]
    unstaged = [name for name in tars if str(folder / name) not in archives]
    yield from _aged("unused environment", folder, unstaged)
    folder = store.path / FOLDER
    records = [name for name in fs.names_in(folder) if name.endswith(".json")]
    unnamed = [name for name in records if name.removesuffix(".json") not in digests]
    yield from _aged("unused record", folder, unnamed)


def interrupted_checks(store: Store) -> Iterator[Leftover]:
    """Directories that a killed `selftest` or `doctor --container` could not remove."""
    names = [name for name in fs.names_in(store.path) if _CHECK.fullmatch(name)]
    return _aged("interrupted check", store.path, names)


def folders_of(directory: ExperimentDir, facts: ExperimentFacts) -> list[Path]:
    """The directories of an experiment that temporary names may be in."""
    trials = [directory.trial(number).path for number in started_ids(directory, facts)]
    return [directory.path, directory.log.path, directory.search, *trials]


def folders_of_store(store: Store) -> list[Path]:
    """Those that belong to no experiment."""
    parts, environments = store.own("index.json").with_suffix(".parts"), store.own("environments")
    logs = [store.ledger.log.path, store.models.log.path]
    return [store.path, *logs, claims_folder(store), parts, environments, store.path / FOLDER]


def _is_old(path: Path, now: float | None) -> bool:
    """Whether it is this user's and has not changed for a day, by its server's clock."""
    try:
        state = path.lstat()
    except OSError:
        return False
    return now is not None and state.st_uid == os.geteuid() and now - state.st_mtime > DAY


def _lives(made: re.Match[str]) -> bool:
    """Whether its process may still live; files of other nodes are judged by their age alone."""
    if made["host"] != os.uname().nodename:
        return False
    return Path(f"/proc/{made['pid']}").exists()


def tree_size(path: Path) -> int:
    """Bytes in a file, or in all files below a directory; 0 if it can't be read."""
    try:
        return sum(list_resources(path).values()) if path.is_dir() else path.lstat().st_size
    except OSError:
        return 0
