"""A trial's artifacts: small images and tables by name and step, in one log that its run writes.

The newest run with artifacts takes over what stands of the earlier ones: its log is the trial's.
Each line has a checksum, so torn lines are never read. Thinned out artifacts go when the log is
rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from detslurm.store import fs
from detslurm.store.errors import CorruptRecord
from detslurm.store.facts import read_record
from detslurm.store.frame import frame, unframe_all
from detslurm.store.run_log import RunLog, lines_of
from detslurm.store.run_records import StartRecord, Steps, typed_record

MOST_BYTES: Final = 16 << 20
"""The bytes of a trial's artifacts."""

MOST_OF_ONE: Final = 1 << 20
"""The bytes of the largest artifact."""

MOST_STEPS_KEPT: Final = 20
"""How many steps of each name are kept."""

MOST_NAMES: Final = 50
"""How many names a trial has."""

_LOG: Final = re.compile(r"run-(\d+)\.artifacts\.jsonl")


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """An image or a table that a trial has reported.

    Attributes:
        name: Its name.
        steps: How many batches were trained.
        kind: "image", "table", "histogram" or "confusion_matrix".
        media: "png", "jpeg", "svg" or "json".
        data: The content of the file.
        time: When it was reported, in seconds since 1970.
    """

    name: str
    steps: Steps
    kind: str
    media: str
    data: bytes
    time: float = 0.0

    @property
    def size(self) -> int:
        """The bytes of its content."""
        return len(self.data)


Named = dict[str, list[Artifact]]
"""Artifacts by name, those of each name by step."""


def thinned(artifacts: Sequence[Artifact], most: int) -> list[Artifact]:
    """The first, the last, and others as evenly between them as they are: at most `most`, from 2.

    The artifact that goes is always that whose neighbours are closest, the first of equals.
    """
    kept = list(artifacts)
    while len(kept) > max(most, 2):
        spans = [kept[i + 1].steps - kept[i - 1].steps for i in range(1, len(kept) - 1)]
        del kept[1 + spans.index(min(spans))]
    return kept


def fitted(named: Named, size: int, most: int = MOST_STEPS_KEPT) -> Named:
    """Artifacts thinned so that they have at most `size` bytes; names that come last are left out
    where the first and the last of each take more."""
    while True:
        found = {name: thinned(some, most) for name, some in named.items()}
        if most <= 2 or _size(found) <= size:
            break
        most //= 2
    while found and _size(found) > size:
        found.popitem()
    return found


def _size(named: Named) -> int:
    return sum(one.size for some in named.values() for one in some)


def read_artifacts(folder: Path) -> Named:
    """The artifacts of a trial's directory; none where it has none, or can't be read."""
    runs = [int(match[1]) for match in map(_LOG.fullmatch, fs.names_in(folder)) if match]
    return _read(_path(folder, max(runs))) if runs else {}


def _path(folder: Path, run: int) -> Path:
    return folder / f"run-{run}.artifacts.jsonl"


def _read(path: Path) -> Named:
    found: dict[tuple[str, int], Artifact] = {}
    for _, line in lines_of(str(path), None, 0, []):
        with suppress(CorruptRecord, msgspec.ValidationError):
            for record in unframe_all(line):
                one = msgspec.convert(record, Artifact)
                found[one.name, one.steps] = one
    return _by_name(found.values())


def _by_name(artifacts: Iterable[Artifact]) -> Named:
    named: Named = {}
    for one in sorted(artifacts, key=lambda one: one.steps):
        named.setdefault(one.name, []).append(one)
    return named


class ArtifactLog:
    """The writer of a run's artifacts; the caller takes turns where it has several threads.

    Code may report each step. An artifact closer to the last kept one than a twentieth of the way
    so far waits in memory, so that thousands of reports write a hundred. The last of each name is
    written at the end.
    """

    def __init__(self, folder: Path, run: int) -> None:
        self._folder, self._run = folder, run
        self._path = _path(folder, run)
        self._named: Named | None = None
        self._waiting: dict[str, Artifact] = {}
        self._log: RunLog | None = None
        self._written = 0

    def add(self, one: Artifact) -> None:
        """Take an artifact. Raises `ValueError` for a step that its name already has, and where
        the trial has no room; `StoreError` where it can't be written now."""
        if self._named is None:
            self._named = self._taken_over(one.steps)
        kept = self._named.get(one.name, [])
        if not kept and len(self._named) >= MOST_NAMES:
            raise ValueError(f"artifact {one.name!r} is dropped: the trial has {MOST_NAMES} names")
        waiting = self._waiting.get(one.name)
        if any(one.steps == other.steps for other in (*kept, *filter(None, [waiting]))):
            raise ValueError(f"artifact {one.name!r} was already reported at step {one.steps}")
        way = one.steps - kept[0].steps if kept else 0
        if kept and kept[-1].steps < one.steps and 20 * (one.steps - kept[-1].steps) < way:
            if waiting is None or waiting.steps < one.steps:
                self._waiting[one.name] = one
            return
        self._waiting.pop(one.name, None)
        self._keep(self._named, one)

    def _keep(self, named: Named, one: Artifact) -> None:
        some = sorted([*named.get(one.name, ()), one], key=lambda other: other.steps)
        fitting = fitted({**named, one.name: some}, MOST_BYTES)
        if one.name not in fitting:
            raise ValueError(f"artifact {one.name!r} is dropped: the trial has {MOST_BYTES} bytes")
        self._named = fitting
        if one in fitting[one.name]:  # else it came out of order, between others
            self._append(one)
        if self._written > 2 * _size(fitting) + MOST_OF_ONE:
            self._rewrite()

    def _append(self, one: Artifact) -> None:
        if self._log is None:
            self._log = RunLog.open(self._path)
        self._written += one.size
        self._log.append_alone(_record(one))
        self._log.flush()

    def _rewrite(self) -> None:
        """Replace the log by the kept artifacts, whole at once."""
        named = self._named or {}
        data = b"".join(frame(_record(one)) for some in named.values() for one in some)
        if self._log is not None:
            self._log.close()
            self._log = None
        fs.replace_file(self._path, data)
        self._written = _size(named)

    def _taken_over(self, steps: int) -> Named:
        """Take valid artifacts of earlier runs over into this run's log. Those past its starting
        checkpoint, or without a checkpoint from its first step on, are the lost past."""
        names = fs.refresh(self._folder)
        runs = sorted(int(match[1]) for match in map(_LOG.fullmatch, names) if match)
        if not runs or runs[-1] > self._run:
            return {}
        found = _read(_path(self._folder, runs[-1]))
        if runs[-1] < self._run:
            path = self._folder / f"run-{self._run}.start.json"
            resumed = typed_record(read_record(path) or {}, StartRecord, path).resume
            last = steps - 1 if resumed is None else resumed.steps
            found = _by_name(one for some in found.values() for one in some if one.steps <= last)
        self._named = found
        self._rewrite()
        for run in runs[:-1] if runs[-1] == self._run else runs:
            fs.discard(str(_path(self._folder, run)))
        return found

    def close(self) -> None:
        """Write the last of each name, and all to the disk."""
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            with suppress(ValueError):
                self._keep(self._named or {}, one)
        if self._log is not None:
            self._log.close()
            self._log = None


def _record(one: Artifact) -> Mapping[str, Any]:
    return {"t": "artifact", **msgspec.to_builtins(one)}
