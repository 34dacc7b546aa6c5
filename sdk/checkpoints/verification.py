"""Compares the files of checkpoints with the records of their saves."""

from __future__ import annotations

import warnings
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from detslurm._base.quantities import counted
from detslurm.sdk.checkpoints.catalog import storages_of
from detslurm.sdk.enums import CheckpointState
from detslurm.storage import METADATA, SharedFS, Storage, list_resources
from detslurm.storage.names import with_parents, without_files
from detslurm.store import (
    CheckpointView,
    ExperimentDir,
    NoHardLinks,
    StoreFault,
    fold_facts,
    fold_trial,
)
from detslurm.store.frame import decode_json, encode_json
from detslurm.store.records import CheckpointVerified
from detslurm.store.trial_fold import BATCH_OUTPUTS

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint

_NAMED = 3  # files that a sentence names; others are counted
_CHECKSUMS = "with wrong checksums"


def verify(
    directory: ExperimentDir,
    checkpoints: Sequence[Checkpoint],
    *,
    deep: bool = False,
    warn: Callable[[str], None] = warnings.warn,
) -> dict[str, str | None]:
    """The fault in each of an experiment's checkpoints; its owner's results are recorded, but for
    deleted checkpoints and storages that can't be seen from here."""
    facts = fold_facts(directory)
    numbers = {one.trial_id for one in checkpoints}
    trials = {n: fold_trial(directory.trial(n), facts.context(n)) for n in numbers}
    recorded = {c.uuid: c for trial in trials.values() for c in trial.checkpoints}
    places = storages_of(directory)
    views = [recorded[c.uuid] for c in checkpoints]
    there = [view for view in views if view.state != CheckpointState.DELETED]
    gone = {view.uuid for view in views if view.state == CheckpointState.DELETED}
    # It may be this machine, or this user, that does not see them.
    unseen = {
        uuid: f"{where} is empty or can't be seen from here"
        for uuid, where in places.unreachable(there).items()
    }
    found: dict[str, str | None] = {}
    for view in (one for one in there if one.uuid not in unseen):
        try:
            found[view.uuid] = problem_of(view, places.of(view.storage), deep=deep)
        except OSError as error:
            unseen[view.uuid] = f"{error.filename or 'its files'} can't be read: {error.strerror}"
    known = facts.checkpoints.problems
    news = {uuid: text for uuid, text in found.items() if text != known.get(uuid)}
    if news and directory.foreign_owner() is None:
        try:
            directory.append(CheckpointVerified(problems=news))
        except (StoreFault, NoHardLinks) as fault:
            warn(f"the result for experiment {directory.id} is not recorded: {fault}")
    found |= {**unseen, **dict.fromkeys(gone, "it was deleted: there is nothing to verify")}
    for one in checkpoints:
        one.problem = found[one.uuid]
        if one.uuid in unseen:
            one.state = CheckpointState.UNKNOWN
        elif one.uuid in gone:
            one.state = CheckpointState.DELETED
    return found


def verify_again(checkpoint: Checkpoint) -> None:
    """Verify a checkpoint of which something was found, as deep as then; another one is left."""
    if checkpoint.problem is not None:
        deep = checkpoint.problem.startswith(_CHECKSUMS)
        verify(checkpoint._directory, [checkpoint], deep=deep, warn=lambda _: None)


def verify_each(
    checkpoints: Sequence[Checkpoint], *, deep: bool, warn: Callable[[str], None]
) -> Iterator[Checkpoint]:
    """Verify checkpoints of any experiments; gives each as soon as it was looked at."""
    groups: dict[int, list[Checkpoint]] = defaultdict(list)
    for one in checkpoints:
        groups[one.experiment_id].append(one)
    for group in groups.values():
        verify(group[0]._directory, group, deep=deep, warn=warn)
        yield from group


def problem_of(checkpoint: CheckpointView, storage: Storage, *, deep: bool = False) -> str | None:
    """The fault of a checkpoint's files, in a sentence; None without a fault."""
    recorded, found = checkpoint.resources, _found(checkpoint, storage)
    if not found and (recorded or checkpoint.kind != BATCH_OUTPUTS):
        return "all its files are missing"
    text = differences(recorded, found)
    if text is None and deep and isinstance(storage, SharedFS):
        return _broken(storage.path(checkpoint.uuid))
    return text


def loss_of(checkpoint: CheckpointView, storage: Storage) -> str | None:
    """Name the recorded files that have changed, in a sentence; None if none has. Metadata is
    recorded elsewhere, and files that were added since are no loss."""
    recorded = {n: size for n, size in checkpoint.resources.items() if n != METADATA}
    found = _found(checkpoint, storage)
    return differences(recorded, {n: size for n, size in found.items() if n in recorded})


def unusable(checkpoint: CheckpointView, storage: Storage) -> str | None:
    """Why nothing can go on from it, in a sentence; None where something can."""
    try:
        loss = loss_of(checkpoint, storage)
    except OSError as error:
        return f"checkpoint {checkpoint.uuid} can't be read: {error.strerror}"
    return loss and f"checkpoint {checkpoint.uuid} is damaged, {loss}"


def _found(checkpoint: CheckpointView, storage: Storage) -> Mapping[str, int]:
    if isinstance(storage, SharedFS):
        found = _files(storage.path(checkpoint.uuid), with_parents(checkpoint.resources))
    else:
        found = storage.resources(checkpoint.uuid)
    return {name: size for name, size in found.items() if is_part_of(name, checkpoint)}


def is_part_of(name: str, checkpoint: CheckpointView) -> bool:
    """Whether a file belongs to it: killed runs leave files beside committed outputs of batches."""
    return checkpoint.kind != BATCH_OUTPUTS or as_recorded(name) in checkpoint.resources


def _files(path: Path, recorded: Mapping[str, int]) -> dict[str, int]:
    """The files by the names in records, which have a link's own size or that of its target. A link
    to a directory, as a PyTorchTrial's to its code, counts as one, also if it leads nowhere now."""
    found: dict[str, int] = {}
    for real, size in list_resources(path).items():
        name = as_recorded(real)
        if f"{name}/" in recorded and (path / real).is_symlink():
            found[f"{name}/"] = 0
        elif size != recorded.get(name, size) and (path / real).is_symlink():
            found[name] = _target_size(path / real, size)
        else:
            found[name] = size
    return found


def _target_size(link: Path, otherwise: int) -> int:
    try:
        return link.stat().st_size
    except OSError:
        return otherwise


def as_recorded(name: str) -> str:
    """A file's name as records give it back: in them, bytes that are no UTF-8 are escaped."""
    return str(decode_json(encode_json(name)))


def differences(recorded: Mapping[str, int], found: Mapping[str, int]) -> str | None:
    """How files differ from their record, in a sentence; None where they don't."""
    missing = [name for name in recorded if name not in found]
    other = [
        f"{name} ({counted(found[name], 'byte')}, not {size})"
        for name, size in recorded.items()
        if name in found and not name.endswith("/") and found[name] != size
    ]
    # A storage adds the metadata itself, also where they were not recorded. A bundle replaces a
    # link to a directory, which is recorded as a directory without files, by its target: files in
    # such a directory prove nothing. Python writes bytecode where code is imported.
    known = {METADATA, *recorded}
    hollow = without_files(recorded)
    added = [
        name
        for name in found
        if name not in known
        and "__pycache__" not in PurePosixPath(name).parts
        and not any(f"{parent}/" in hollow for parent in PurePosixPath(name).parents)
    ]
    parts = {"missing": missing, "of another size": other, "not recorded": added}
    return "; ".join(f"{what}: {_listed(names)}" for what, names in parts.items() if names) or None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(sorted(names)[:_NAMED]) + more


def _broken(path: Path) -> str | None:
    """Read the files that carry checksums: zip archives, which `torch.save` writes."""
    broken = []
    for name in list_resources(path):
        file = path / name
        if name.endswith("/") or not zipfile.is_zipfile(file):
            continue
        try:
            with zipfile.ZipFile(file) as archive:
                part = archive.testzip()
        except (zipfile.BadZipFile, OSError) as error:
            broken.append(f"{name} ({error})")
        else:
            broken += [f"{name} ({part})"] if part is not None else []
    return f"{_CHECKSUMS}: {as_recorded(_listed(broken))}" if broken else None
