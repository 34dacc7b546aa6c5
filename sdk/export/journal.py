"""What a directory has of each run already: a journal in it, which tells what is new."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import msgspec

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.export.content import ExperimentContent, TrialContent
from detslurm.store import MetricRow
from detslurm.store.frame import encode_json

_ABOUT: Final = (
    *("state", "run_count", "hparams", "started", "ended", "steps", "restarts", "end_reason"),
    *("best_validation", "latest_checkpoint"),
)


class ExportedRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the journal: what was written of a run, by groups of metrics.

    `pending` was written before the export of it, which may have broken off anywhere.
    """

    run: str
    experiment: int
    trial: int
    pending: bool = False
    settled: bool = False
    about: str = ""
    groups: dict[str, tuple[int, str]] = {}


@dataclass(frozen=True)
class RunChange:
    """What has to be written of a run."""

    kind: Literal["new", "added", "rewritten"]
    rows: Sequence[MetricRow]  # those that are new
    all_rows: Sequence[MetricRow]


class ExportJournal:
    """The journal of one format in one directory; one process at a time has it open."""

    def __init__(self, folder: Path, to: str) -> None:
        self._path = folder / f".detslurm-{to}.jsonl"
        self._file: BinaryIO = self._path.open("ab")
        _lock(self._file, folder)
        self._file.write(b"\n" if self._file.tell() else b"")  # after a line that a crash has torn
        self._known = _read(self._path)

    def __enter__(self) -> ExportJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def known(self, trial: TrialContent) -> ExportedRun | None:
        """What was written of a trial; None if nothing was."""
        return self._known.get(trial.run_id)

    def refuse_namesake(self, experiment: ExperimentContent) -> None:
        """Raise LifecycleError where an experiment of another store was exported under this id."""
        for known in self._known.values():
            if known.experiment == experiment.id and not known.run.startswith(experiment.mark):
                raise LifecycleError(
                    f"{self._path.parent} has experiment {experiment.id} of another store: "
                    "choose another directory"
                )

    def write(self, lines: Iterable[ExportedRun]) -> None:
        """Add lines, on disk before this returns."""
        for line in lines:
            self._known[line.run] = line
            self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _lock(file: BinaryIO, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise LifecycleError(f"another export is at work in {folder}") from None
    except OSError:
        pass  # a file system without locks: two exports at once are the user's to avoid


def _read(path: Path) -> dict[str, ExportedRun]:
    found: dict[str, ExportedRun] = {}
    for line in path.read_bytes().splitlines():
        try:
            known = msgspec.json.decode(line, type=ExportedRun)
        except msgspec.DecodeError:
            continue  # torn by a crash: what it was about is still pending
        found[known.run] = known
    return found


def is_settled(known: ExportedRun | None, about: str) -> bool:
    """Whether nothing can be new, so that the logs need not be read."""
    return known is not None and known.settled and not known.pending and known.about == about


def change_of(known: ExportedRun | None, about: str, rows: Sequence[MetricRow]) -> RunChange | None:
    """What must be written of a run whose rows are these now; None if all of it was."""
    if known is None:
        return RunChange("new", rows, rows)
    groups = by_group(rows)
    if known.pending or any(
        len(groups.get(name, ())) < count or _hash(groups[name][:count]) != digest
        for name, (count, digest) in known.groups.items()
    ):
        return RunChange("rewritten", rows, rows)
    counts = {name: count for name, (count, _) in known.groups.items()}
    new = [row for name, part in groups.items() for row in part[counts.get(name, 0) :]]
    new.sort(key=lambda row: row.steps)
    return RunChange("added", new, rows) if new or known.about != about else None


def written(
    experiment: int, trial: TrialContent, about: str, rows: Sequence[MetricRow]
) -> ExportedRun:
    """The line for a run of which all these rows were written."""
    groups = {name: (len(part), _hash(part)) for name, part in by_group(rows).items()}
    return ExportedRun(
        run=trial.run_id,
        experiment=experiment,
        trial=trial.id,
        settled=trial.settled,
        about=about,
        groups=groups,
    )


def by_group(rows: Iterable[MetricRow]) -> dict[str, list[MetricRow]]:
    """Rows by their group, in their order."""
    groups: dict[str, list[MetricRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def about(experiment: ExperimentContent, trial: TrialContent) -> str:
    """A hash of everything of a run that is exported beside its rows."""
    config: Mapping[str, Any] = experiment.config
    facts = [experiment.name, experiment.description, experiment.labels, config]
    return _digest(encode_json([facts, [getattr(trial.row, name) for name in _ABOUT]]))


def _hash(rows: Iterable[MetricRow]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(encode_json([row.steps, row.metrics, row.time]))
    return digest.hexdigest()[:16]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
