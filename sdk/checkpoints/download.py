"""Copies of checkpoints: whole or not there, checked, and continued after an interruption."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import stat
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from detslurm._base.access import NOBODY, user_name
from detslurm._base.trust import mark_unverified
from detslurm.errors import InvalidCheckpointException
from detslurm.sdk.checkpoints.catalog import storages_of
from detslurm.sdk.checkpoints.verification import as_recorded, is_part_of, loss_of
from detslurm.sdk.errors import LifecycleError
from detslurm.storage import METADATA, Digests, Storage, files, list_resources
from detslurm.storage.files import rename, sync
from detslurm.storage.names import recorded
from detslurm.store import CheckpointView, ExperimentDir, NoHardLinks, StoreFault
from detslurm.store.checkpoint_facts import CheckpointGone, held
from detslurm.store.root_access import owner
from detslurm.store.trial_fold import BATCH_OUTPUTS

Progress = Callable[[int, int], None]

_CHUNK: Final = 8 << 20


def download(
    experiment: ExperimentDir,
    checkpoint: CheckpointView,
    target: Path,
    progress: Progress | None = None,
) -> Path:
    """Copy a checkpoint; links in it become what they lead to. The copy grows in a directory beside
    the target, or inside of a target that has to stay, and has its names at the end."""
    uuid = checkpoint.uuid
    if checkpoint.state == "DELETED":
        raise LifecycleError(f"checkpoint {uuid} was deleted")
    storage = storages_of(experiment).of(checkpoint.storage)
    if checkpoint.kind is not None:
        return _download_outputs(storage, checkpoint, target)
    source = _Source(storage, uuid, digests_of(experiment, checkpoint))
    real = Path(os.path.realpath(target))
    if os.path.lexists(target) and _has_something(real, uuid):
        wanted = source.files() if storage.exists(uuid) else checkpoint.resources
        if _is_copy(wanted, target):
            return target
        raise LifecycleError(f"{target} exists already, and is no copy of checkpoint {uuid}")
    with _held(experiment, uuid):
        report = progress or (lambda done, whole: None)
        _copy(source, checkpoint, real, report, experiment.code)
    return target


def _download_outputs(storage: Storage, outputs: CheckpointView, target: Path) -> Path:
    """Copy a directory of outputs as it is now, as a run may go on writing there; of outputs of
    batches only the committed files. The copy has its name once it is whole."""
    real = Path(os.path.realpath(target))
    if os.path.lexists(target) and _has_something(real, outputs.uuid):
        raise LifecycleError(f"{target} exists already")
    if not storage.exists(outputs.uuid):
        raise LifecycleError(f"the outputs {outputs.uuid} are not under {storage.where}")
    committed = outputs.resources if outputs.kind == BATCH_OUTPUTS else {}
    stage = _begun_stage(real, outputs.uuid)
    # Committed files that an interrupted download has copied do not change any more.
    there = {as_recorded(name): size for name, size in list_resources(stage).items()}
    whole = {name for name, size in committed.items() if there.get(name) == size}
    storage.get(outputs.uuid, stage, partial(_is_wanted, outputs, whole))
    if lost := committed.keys() - set(map(as_recorded, list_resources(stage))):
        raise LifecycleError(
            f"{len(lost)} files of the outputs are gone from {storage.where}: {min(lost)}; the"
            f" others are in {stage}"
        )
    if committed:
        _tidy(stage, {name: 0 for name in list_resources(stage) if is_part_of(name, outputs)})
    _put(stage, real)
    return target


def _is_wanted(outputs: CheckpointView, whole: Container[str], name: str) -> bool:
    return is_part_of(name, outputs) and as_recorded(name) not in whole


def digests_of(experiment: ExperimentDir, checkpoint: CheckpointView) -> Digests | None:
    """Return the digests that files from a bucket must have; None without a record of this user's,
    because another user who wrote the record may have written the files."""
    return None if experiment.foreign_owner() else checkpoint.digests or None


def _has_something(target: Path, uuid: str) -> bool:
    if not target.is_dir():
        return True
    stage = _stage(target, uuid)
    if stage.parent == target and stage.exists():
        return False  # it was being filled
    found = {path.name for path in target.iterdir()}
    return bool(found - {"lost+found"} if target.is_mount() else found)


def _stage(target: Path, uuid: str) -> Path:
    """Where the copy grows: on the same disk as the target."""
    inside = target / f".{target.name}.{uuid[:8]}.partial"
    return inside if inside.exists() or _stays(target) else target.with_name(inside.name)


def _begun_stage(target: Path, uuid: str) -> Path:
    """The directory where the copy grows, with the files of an interrupted download."""
    stage = _stage(target, uuid)
    try:
        stage.mkdir(parents=True)
    except FileExistsError:
        _refuse_what_others_made(stage)
    return stage


def _stays(target: Path) -> bool:
    """Whether it can't be replaced, as a mount point or the working directory of a shell."""
    return target.is_dir() and (target.is_mount() or target.samefile("."))


def _is_copy(wanted: Mapping[str, int], target: Path) -> bool:
    """Whether all files are there with their sizes; the metadata may have been edited since."""
    found = list_resources(target) if target.is_dir() else {}
    there = {as_recorded(name): size for name, size in found.items()}
    files = {as_recorded(name): size for name, size in wanted.items() if name != METADATA}
    return bool(files) and all(there.get(name) == size for name, size in files.items())


@contextmanager
def _held(experiment: ExperimentDir, uuid: str) -> Iterator[None]:
    """It is not deleted meanwhile. Of others' experiments it can't be held: the end decides."""
    with ExitStack() as stack:
        try:
            stack.enter_context(held(experiment, [uuid], by=f"a download by {user_name()}"))
        except CheckpointGone as error:
            raise LifecycleError(f"checkpoint {uuid} was deleted") from error
        except (StoreFault, NoHardLinks):
            pass  # another user's experiment, a store that is mounted to be read, a full disk
        yield


class _Source(NamedTuple):
    """A checkpoint in a storage, with the digests that its files must have, if they are known."""

    storage: Storage
    uuid: str
    digests: Digests | None

    def files(self) -> Mapping[str, int]:
        """Its resources as they are now, except for links that lead nowhere."""
        found, folder = self.storage.resources(self.uuid), self.storage.direct(self.uuid)
        if folder is None:
            return recorded(found, self.digests)
        return {name: size for name, size in found.items() if not leads_nowhere(folder / name)}


def _copy(
    source: _Source, checkpoint: CheckpointView, target: Path, progress: Progress, code: Path
) -> None:
    storage, uuid, digests = source
    if not storage.exists(uuid):
        raise LifecycleError(f"the files of checkpoint {uuid} are not under {storage.where}")
    if lost := loss_of(checkpoint, storage):
        raise LifecycleError(
            f"checkpoint {uuid} is damaged, {lost}; its other files are in {storage.where}"
        )
    stage = _begun_stage(target, uuid)
    try:
        if digests is None and storage.direct(uuid) is None:
            mark_unverified(stage)
        wanted = source.files()
        _fill(source, stage, wanted, progress)
        _check(source, wanted, list_resources(stage))
        _tidy(stage, wanted)
    except InvalidCheckpointException as error:
        raise LifecycleError(str(error)) from error
    except FileNotFoundError as error:
        raise LifecycleError(
            f"checkpoint {uuid} was deleted while it was copied: {error}"
        ) from error
    if checkpoint.metadata and json.dumps(checkpoint.metadata) != _stored_metadata(stage):
        write_metadata(stage / METADATA, checkpoint.metadata)
    add_code(stage, code)
    sync(stage)
    _put(stage, target)


def _put(stage: Path, target: Path) -> None:
    if stage.parent == target:
        moves = [(path, target / path.name) for path in sorted(stage.iterdir())]
        there = [(path, other) for path, other in moves if os.path.lexists(other)]
        for path, other in there:  # an earlier attempt or another process has put it there
            if not _is_same(path, other):
                raise LifecycleError(f"{other} is in the way; the copies so far are in {stage}")
        for path, other in moves:
            if (path, other) in there:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            else:
                rename(path, other)
        stage.rmdir()
        return
    if target.is_dir():
        target.rmdir()  # it is empty
    rename(stage, target)


def _refuse_what_others_made(stage: Path) -> None:
    """In a directory of several users anybody could have made it, with files in it or as a link."""
    found = stage.lstat()
    if found.st_uid not in (os.geteuid(), NOBODY) or not stat.S_ISDIR(found.st_mode):
        raise LifecycleError(
            f"{stage}, where the copy grows, was made by {owner(found.st_uid)}: remove it first"
        )


def _is_same(path: Path, other: Path) -> bool:
    if not path.is_dir():  # another checkpoint's has the same size as a rule
        return other.is_file() and filecmp.cmp(path, other, shallow=False)
    names = list_resources(path)
    files = (name for name in names if not name.endswith("/"))
    same = other.is_dir() and names == list_resources(other)
    return same and all(_is_same(path / name, other / name) for name in files)


def leads_nowhere(path: Path) -> bool:
    """Whether a path is a link to nothing, or to itself."""
    try:
        return files.leads_nowhere(path)
    except OSError:  # reading it raises the error
        return False


def _fill(source: _Source, stage: Path, wanted: Mapping[str, int], progress: Progress) -> None:
    """Copy missing files: a file has its name once it is whole."""
    there = list_resources(stage)
    missing = {name for name, size in wanted.items() if there.get(name) != size}
    whole = sum(wanted.values())
    done = whole - sum(wanted[name] for name in missing)
    progress(done, whole)
    folder = source.storage.direct(source.uuid)
    if folder is None:
        source.storage.get(source.uuid, stage, missing.__contains__, source.digests)
        for name in missing:
            sync(stage / name)
        progress(whole, whole)
        return
    for name in sorted(missing):
        if name.endswith("/"):
            (stage / name).mkdir(parents=True, exist_ok=True)
            continue
        for count in _copied(folder / name, stage / name):
            done += count
            progress(done, whole)


def _copied(source: Path, target: Path) -> Iterator[int]:
    """Copy a file; yields how many bytes each step has copied."""
    target.parent.mkdir(parents=True, exist_ok=True)
    growing = target.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        with source.open("rb") as reader, growing.open("wb") as writer:
            while data := reader.read(_CHUNK):
                writer.write(data)
                yield len(data)
            writer.flush()
            os.fsync(writer.fileno())
        shutil.copystat(source, growing)
        growing.rename(target)
    finally:
        growing.unlink(missing_ok=True)


def _check(source: _Source, wanted: Mapping[str, int], got: Mapping[str, int]) -> None:
    """Compare the copy with the source of now, which may have been changed or deleted."""
    uuid = source.uuid
    if not source.storage.exists(uuid) or source.files() != wanted:
        raise LifecycleError(f"checkpoint {uuid} was changed or deleted while it was copied")
    for name, size in wanted.items():
        if got.get(name) != size:
            raise LifecycleError(
                f"the copy of checkpoint {uuid} is not whole: {name} has {got.get(name, 0)} of"
                f" {size} bytes; run the same command again to continue"
            )


def _tidy(stage: Path, wanted: Mapping[str, int]) -> None:
    """Remove what a killed download has left of a file."""
    for name in list_resources(stage):
        if name not in wanted and name.endswith(".tmp"):
            (stage / name).unlink(missing_ok=True)


def _stored_metadata(stage: Path) -> str | None:
    try:
        return json.dumps(json.loads((stage / METADATA).read_bytes()))
    except (OSError, ValueError):
        return None


def write_metadata(path: Path, metadata: Mapping[str, Any]) -> None:
    """Write metadata as a file; readers find the old content or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    growing = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    growing.write_text(json.dumps(metadata, indent=2))
    growing.rename(path)


def add_code(target: Path, frozen: Path) -> None:
    """A PyTorchTrial's checkpoint in a bucket names the code only."""
    for left in target.glob(".code.*.tmp"):  # by a copy that broke off
        shutil.rmtree(left)
    if (target / "load_data.json").exists() and frozen.is_dir() and not (target / "code").exists():
        growing = target / f".code.{os.urandom(8).hex()}.tmp"
        try:
            shutil.copytree(frozen, growing, ignore=shutil.ignore_patterns("__pycache__"))
        except PermissionError:  # another user's: nothing was copied
            return
        rename(growing, target / "code")


def how_to_load(target: Path, foreign: str | None) -> str:
    """How the files of a downloaded checkpoint become a model again, for people; `foreign` is the
    name of its owner if that is another user."""
    if not (target / "load_data.json").exists():
        return "Its files are as the code saved them: load them as that code does."
    lacks = foreign is not None and not (target / "code").is_dir()
    without = f"It is without its code, which is {foreign}'s alone. " if lacks else ""
    more = ", trial_class=..." if lacks else ""
    return (
        f"{without}Load it in Python with: from detslurm import pytorch;"
        f" trial = pytorch.load_trial_from_checkpoint_path({str(target)!r}{more})"
    )
