"""Making a bundle: what an experiment has left, without its secrets, in one file."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast

import msgspec

from detslurm.config import ExperimentConfig
from detslurm.errors import InvalidCheckpointException
from detslurm.sdk.bundle.archive import (
    CONFIG,
    FACTS,
    NAME,
    RUN_FILE,
    VERSIONS,
    ByteMeter,
    File,
    Manifest,
    Progress,
    Versions,
)
from detslurm.sdk.checkpoints.catalog import storages_of
from detslurm.sdk.checkpoints.download import digests_of, leads_nowhere
from detslurm.sdk.checkpoints.verification import as_recorded, is_part_of, unusable
from detslurm.sdk.errors import BundleError
from detslurm.sdk.provenance.view import kept_versions
from detslurm.storage import Storage, list_resources
from detslurm.store import (
    CheckpointView,
    ExperimentDir,
    FactLog,
    flat,
    fold_trial,
    fs,
    refuse_newer,
)
from detslurm.store.checkpoint_facts import held
from detslurm.store.frame import encode_json
from detslurm.store.records import CheckpointFilesRemoved, Lost, plain_of
from detslurm.store.trial_fold import OUTPUTS

if TYPE_CHECKING:
    from detslurm.sdk.experiments.snapshot import ExperimentSnapshot

Which = Literal["all", "best", "latest", "none"]
Source = Path | bytes

_FACTS = frozenset(
    {"created", "trials", "set", "search_ended", "checkpoint_files_removed", "checkpoint_metadata"}
)
_INTENTS = frozenset({"cancel", "kill", "kill_trial"})
_BLOCK = 1 << 20
# Level 1: weights don't get smaller by a higher level, and bfloat16 takes three times as long.
_GZIP: dict[str, Any] = {"mode": "w:gz", "compresslevel": 1}
_FORMATS: dict[str, dict[str, Any]] = {".tar.gz": _GZIP, ".tgz": _GZIP, ".tar": {"mode": "w"}}


@dataclass(frozen=True)
class Bundled:
    """A bundle that was made.

    Attributes:
        path: The file.
        size: Its size in bytes.
        checkpoints: The storage ids of the checkpoints in it.
        masked: The keys of the configuration whose values were left out.
    """

    path: Path
    size: int
    checkpoints: tuple[str, ...]
    masked: tuple[str, ...]


def bundle(one: ExperimentSnapshot, target: Path, which: Which, progress: Progress) -> Bundled:
    """Write a finished experiment into a file that does not exist yet. Raises `BundleError`."""
    _refuse(one, target)
    chosen = {checkpoint.uuid: checkpoint for checkpoint in _chosen(one, which)}
    try:
        with ExitStack() as stack:
            if chosen:
                stack.enter_context(held(one.directory, chosen, by="a bundle that is being made"))
            scratch = tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent)
            manifest = _make(one, target, chosen, Path(stack.enter_context(scratch)), progress)
    except OSError as error:
        what = error.filename or target  # a full disk names no file
        raise BundleError(f"{what} can't be bundled: {error.strerror}") from error
    return Bundled(target, target.stat().st_size, manifest.checkpoints, manifest.masked)


def _make(
    one: ExperimentSnapshot,
    target: Path,
    chosen: Mapping[str, CheckpointView],
    scratch: Path,
    progress: Progress,
) -> Manifest:
    directory = one.directory
    config = ExperimentConfig.from_dict(directory.config())
    saved = _checkpoints(directory, chosen.values(), scratch)
    content: dict[str, Source] = {
        CONFIG: encode_json(config.masked()),
        FACTS: encode_json([*_facts(one), *_listed(chosen.values(), saved)]),
        **dict(_versions(one)),
        **dict(_code(directory.code)),
        **dict(_runs(one)),
        **dict(_events(directory)),
        **saved,
    }
    files = {name: source for name, source in content.items() if not name.endswith("/")}
    # Each file is read twice: to describe it, and to write it.
    meter = ByteMeter(progress, 2 * sum(map(_size, files.values())))
    manifest = Manifest(
        experiment=one.view.id,
        owner=one.view.owner,
        made=time.time(),
        masked=_masked(config),
        checkpoints=tuple(chosen),
        directories=tuple(name.rstrip("/") for name in content if name.endswith("/")),
        files={name: _described(source, meter) for name, source in files.items()},
    )
    _write(target, scratch / "bundle", manifest, files, meter)
    return manifest


def _refuse(one: ExperimentSnapshot, target: Path) -> None:
    number = one.view.id
    if owner := one.directory.foreign_owner():
        raise BundleError(f"experiment {number} belongs to {owner}, who alone may do that")
    if not one.view.finished:
        raise BundleError(
            f"experiment {number} is {one.view.state}: only finished ones are bundled"
        )
    refuse_newer(one.directory.path, one.facts.format)  # it would lack what can't be read
    if lost := one.facts.lost_fact:
        raise BundleError(f"{lost} is missing: nothing is bundled without that fact")
    if _format(target) is None:
        raise BundleError(f"{target.name}: the name has to end in {', '.join(_FORMATS)}")
    if target.exists():
        raise BundleError(f"{target} exists already")
    if not target.parent.is_dir():
        raise BundleError(f"the directory {target.parent} does not exist")


def _format(target: Path) -> dict[str, Any] | None:
    return next((given for end, given in _FORMATS.items() if target.name.endswith(end)), None)


# -- what belongs to it ----------------------------------------------------------------------------


def _chosen(one: ExperimentSnapshot, which: Which) -> Iterator[CheckpointView]:
    """The checkpoints that go along, the latest of each trial or the best of all."""
    for trial_id in one.facts.trial_ids if which != "none" else ():
        if which == "best" and trial_id != one.view.best_trial:
            continue
        trial = fold_trial(one.directory.trial(trial_id), one.facts.context(trial_id))
        left = [c for c in trial.checkpoints if c.state != "DELETED"]
        yield from (c for c in left if c.kind == OUTPUTS or (c.kind is not None and c.resources))
        saved, best = [c for c in left if c.kind is None], trial.best_validation
        if which == "best" and best is not None:
            saved = [c for c in saved if c.steps == best.steps] or saved
        yield from saved if which == "all" else saved[-1:]


def _masked(config: ExperimentConfig) -> tuple[str, ...]:
    whole, shown = dict(flat(config.to_dict())), dict(flat(config.masked()))
    return tuple(name for name, value in whole.items() if shown.get(name) != value)


def _facts(one: ExperimentSnapshot) -> Iterator[dict[str, Any]]:
    """The part of the configuration that shapes results; nothing about jobs, paths and requests."""
    for fact in one.directory.facts():
        kind = fact.get("type")
        if kind in _FACTS or (kind == "intent" and fact.get("intent") in _INTENTS):
            yield fact
    by_reason: dict[str, list[int]] = {}
    for trial, reason in one.facts.lost.items():
        by_reason.setdefault(reason, []).append(trial)
    for reason, trials in by_reason.items():
        yield plain_of(Lost(trials=tuple(trials), reason=reason))


def _versions(one: ExperimentSnapshot) -> Iterator[tuple[str, bytes]]:
    code, software = kept_versions(one)
    if code is not None or software is not None:
        yield VERSIONS, msgspec.json.encode(Versions(code=code, software=software))


def _runs(one: ExperimentSnapshot) -> Iterator[tuple[str, Path]]:
    for index, trial_id in enumerate(_all_trials(one)):
        folder = one.directory.trial(trial_id).path
        for name in sorted(fs.names_in(folder)):
            if RUN_FILE.fullmatch(name):
                yield f"trials/{index}/{name}", folder / name


def _all_trials(one: ExperimentSnapshot) -> list[int]:
    """Every trial id that the facts give, in their order."""
    ids: list[int] = []
    for fact in one.directory.facts():
        if fact.get("type") in ("created", "trials"):
            ids += range(fact["first_trial"], fact["first_trial"] + fact["trials"])
    return ids


def _events(directory: ExperimentDir) -> Iterator[tuple[str, bytes]]:
    for fact in FactLog(directory.search).facts():
        if fact.get("missing"):
            raise BundleError(f"{fact['path']} is missing: what the search decided is unknown")
        yield f"search/{fact['n']:06d}.json", encode_json(fact)


def _checkpoints(
    directory: ExperimentDir, chosen: Iterable[CheckpointView], scratch: Path
) -> dict[str, Source]:
    storages = storages_of(directory)
    found: dict[str, Source] = {}
    for one in chosen:
        storage = storages.of(one.storage)
        _refuse_damaged(one, storage)
        folder = storage.direct(one.uuid)
        if folder is None:
            folder = scratch / one.uuid
            folder.mkdir()
            try:
                storage.get(one.uuid, folder, None, digests_of(directory, one))
            except InvalidCheckpointException as error:
                raise BundleError(str(error)) from error
        for name in list_resources(folder, follow=True):  # a link as its target
            if is_part_of(name, one) and not leads_nowhere(folder / name):
                found[f"checkpoints/{one.uuid}/{name}"] = folder / name
    return found


def _listed(
    chosen: Iterable[CheckpointView], saved: Mapping[str, Source]
) -> Iterator[dict[str, Any]]:
    """Facts about checkpoints whose files differ here from the record: links become files."""
    for checkpoint in chosen:
        folder = f"checkpoints/{checkpoint.uuid}/"
        resources = {
            as_recorded(name.removeprefix(folder)): 0 if name.endswith("/") else _size(source)
            for name, source in saved.items()
            if name.startswith(folder)
        }
        if resources != checkpoint.resources:
            yield plain_of(CheckpointFilesRemoved(uuid=checkpoint.uuid, resources=resources))


def _refuse_damaged(one: CheckpointView, storage: Storage) -> None:
    """A bundle may be the last copy one day: it lacks nothing that it lists."""
    if not storage.exists(one.uuid):
        raise BundleError(f"the files of checkpoint {one.uuid} are not under {storage.where}")
    if problem := unusable(one, storage):
        raise BundleError(f"{problem}; `--checkpoints none` leaves them out")


def _code(folder: Path) -> Iterator[tuple[str, Path]]:
    for name in list_resources(folder):
        # No links to a pipe or the like: opening it would wait.
        kept = name.endswith("/") or (folder / name).is_file()
        if kept and "__pycache__" not in name.split("/"):
            yield f"code/{name}", folder / name


# -- the file --------------------------------------------------------------------------------------


def _size(source: Source) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def _described(source: Source, meter: ByteMeter) -> File:
    digest = hashlib.sha256()
    with _opened(source) as file:
        executable = isinstance(source, Path) and bool(source.stat().st_mode & 0o100)
        while data := file.read(_BLOCK):
            digest.update(data)
            meter.add(len(data))
        return File(size=file.tell(), sha256=digest.hexdigest(), executable=executable)


def _write(
    target: Path, stage: Path, manifest: Manifest, files: dict[str, Source], meter: ByteMeter
) -> None:
    with stage.open("wb") as out:
        with tarfile.open(fileobj=out, **(_format(target) or {"mode": "w"})) as archive:
            data = json.dumps(msgspec.to_builtins(manifest)).encode()
            archive.addfile(_member(NAME, len(data)), io.BytesIO(data))
            for name, source in files.items():
                with _opened(source) as file:
                    member = _member(name, manifest.files[name].size)
                    archive.addfile(member, cast(IO[bytes], _Metered(file, meter)))
        out.flush()
        os.fsync(out.fileno())
    put(stage, target)


def put(stage: Path, target: Path) -> None:
    """Give a finished file its name; a file that came to be there meanwhile stays."""
    try:
        os.link(stage, target)
    except FileExistsError as error:
        raise BundleError(f"{target} exists already") from error
    except OSError:
        stage.rename(target)


class _Metered:
    """A file that reports read bytes to a meter."""

    def __init__(self, file: IO[bytes], meter: ByteMeter) -> None:
        self._file, self._meter = file, meter

    def read(self, count: int = -1) -> bytes:
        data = self._file.read(count)
        self._meter.add(len(data))
        return data


def _opened(source: Source) -> IO[bytes]:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    return member
