"""Records of the code and the software that experiments ran, kept once under their own digests.

Equal records are one file: a thousand submissions from one environment share it. A reader checks
the digest, because other users of a shared store may write any file under any name.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from detslurm._base import access
from detslurm.store import fs
from detslurm.store.errors import CorruptRecord

if TYPE_CHECKING:
    from detslurm.store.experiment import ExperimentDir
    from detslurm.store.store import Store

FOLDER: Final = "provenance"
"""The directory of these records in a store."""

RAN: Final = "software"
"""The directory of an experiment that names the software of runs, where it was another."""

_LARGEST: Final = 4 << 20  # bytes
_MOST_NAMES: Final = 100  # another user may make any number


class CodeVersion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of the git repository that the code came from.

    Attributes:
        repository: The directory of the working tree; None where the code is in no repository.
        commit: The id of the commit; None without a commit.
        branch: The branch; None where no branch is checked out.
        remotes: The addresses of the remotes by name, without credentials.
        changed: The paths of tracked files that differ from the commit, at most 100.
        changed_count: Their number; None if unknown.
        untracked_count: The number of files and directories that git does not track; None if
            unknown.
        diff: The uncommitted changes as a patch, with secrets masked.
        diff_is_cut: Whether only the beginning of the patch was kept.
        problem: The part that is unknown, and why, in a sentence; None if all is known.
        owner: In a shared store the id of the user, who alone can read the record.
    """

    repository: str | None = None
    commit: str | None = None
    branch: str | None = None
    remotes: dict[str, str] = {}
    changed: tuple[str, ...] = ()
    changed_count: int | None = None
    untracked_count: int | None = None
    diff: str = ""
    diff_is_cut: bool = False
    problem: str | None = None
    owner: int | None = None


class Software(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The Python that trains, with its packages.

    Attributes:
        python: The version of Python; None if unknown.
        prefix: The directory of its environment.
        conda: The name of conda's environment; None if it is not conda's.
        packages: The versions of Python's packages by name; "" where a version is unknown.
        conda_packages: The versions of conda's other packages by name.
        modules: The loaded environment modules, in the order of loading.
        problem: The part that is unknown, and why, in a sentence; None if all is known.
    """

    python: str | None = None
    prefix: str | None = None
    conda: str | None = None
    packages: dict[str, str] = {}
    conda_packages: dict[str, str] = {}
    modules: tuple[str, ...] = ()
    problem: str | None = None


R = TypeVar("R", CodeVersion, Software)


def keep(store: Store, record: CodeVersion | Software) -> str:
    """Return the digest of a record, under which the store has it from now on.

    A `CodeVersion` is its user's alone, as the code is; a `Software` is read by the group of a
    shared store.
    """
    secret = isinstance(record, CodeVersion)
    if isinstance(record, CodeVersion) and access.shared(str(store.path)):
        # Else two users with equal code would share a file that one of them can't read.
        record = msgspec.structs.replace(record, owner=os.geteuid())
    digest, data = _encoded(record)
    path = store.path / FOLDER / f"{digest}.json"
    # The time of the last submission with it: garbage collection leaves young records alone.
    if not fs.renew(path):
        fs.ensure_directory(path.parent)
        fs.put_if_absent(path, data, secret=secret)
    return digest


def _encoded(record: CodeVersion | Software) -> tuple[str, bytes]:
    data = msgspec.json.encode(record, order="deterministic")
    return hashlib.sha256(data).hexdigest(), data


def note_software(experiment: ExperimentDir, found: Software, trial: int, run: int) -> None:
    """Record the software of a run, unless the submission or an earlier run recorded the same."""
    recorded = experiment.created().provenance
    digest, _ = _encoded(found)
    path = experiment.path / RAN / f"{digest}.json"
    if (recorded is not None and recorded.software == digest) or fs.exists(path):
        return
    keep(experiment.store, found)
    fs.ensure_directory(path.parent)
    fs.put_if_absent(path, msgspec.json.encode({"trial": trial, "run": run}))


def digests_of_runs(experiment: ExperimentDir) -> list[str]:
    """Return the digests of software of runs that differ from the submission's, first run first."""
    folder, found = experiment.path / RAN, []
    for name in sorted(fs.names_in(folder))[:_MOST_NAMES]:
        try:
            first = msgspec.json.decode(fs.read_file(folder / name) or b"", type=_FirstRun)
        except (msgspec.DecodeError, CorruptRecord):
            continue  # damaged, or not ours
        found.append((first, name.removesuffix(".json")))
    return [digest for _, digest in sorted(found)]


class _FirstRun(msgspec.Struct, order=True):
    trial: int
    run: int


def read_kept(store: Store, digest: str | None, kind: type[R]) -> R | None:
    """Return the record with this digest; None where it is missing or damaged.

    Raises `StoreError` where it can't be read.
    """
    if digest is None or not digest.isalnum():
        return None
    data = fs.read_file(store.path / FOLDER / f"{digest}.json", expected=True)
    if data is None or len(data) > _LARGEST or hashlib.sha256(data).hexdigest() != digest:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError:  # of a newer version
        return None
