"""The journal of an export: which state of each run a directory has already."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.export.content import ExperimentContent, TrialContent
from detslurm.store import MetricRow
from detslurm.store.frame import encode_json

_ABOUT: Final = (
    *("state", "run_count", "final", "hparams", "started", "ended", "steps", "restarts"),
    *("end_reason", "best_validation", "latest_checkpoint"),
)


class ExportedRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the journal: a run as it was written, by digests of its facts and its rows. A line
    without digests precedes the writing, which may break off anywhere."""

    run: str
    experiment: int
    trial: int
    about: str = ""
    rows: str = ""
    run_count: int = 0


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
        """The last line about a trial; None if it was never written."""
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
    runs: dict[str, ExportedRun] = {}
    for line in path.read_bytes().splitlines():
        try:
            run = msgspec.json.decode(line, type=ExportedRun)
        except msgspec.DecodeError:
            continue  # torn by a crash: the line before it has no digests
        runs[run.run] = run
    return runs


def facts_digest(experiment: ExperimentContent, trial: TrialContent) -> str:
    """A digest of everything of a run that is exported beside its rows."""
    view = experiment.view
    facts = [view.name, view.description, view.labels, experiment.config]
    return _digest([facts, [getattr(trial.row, name) for name in _ABOUT]])


def exported_run(
    experiment: ExperimentContent, trial: TrialContent, about: str, rows: Sequence[MetricRow]
) -> ExportedRun:
    """The line for a run of which all these rows are written."""
    return ExportedRun(
        run=trial.run_id,
        experiment=experiment.id,
        trial=trial.id,
        about=about,
        rows=_digest([[row.group, row.steps, row.metrics, row.time] for row in rows]),
        run_count=trial.row.run_count,
    )


def _digest(data: Any) -> str:
    return hashlib.sha256(encode_json(data)).hexdigest()[:16]
