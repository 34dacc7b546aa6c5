"""The use of requested resources by earlier experiments, kept for the next similar submission.

The runner that ends an experiment writes it, a submission reads it: one small file for each user,
in the root of the store. Where two runners write at once one record is lost, which costs one note.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from detslurm.store import fs
from detslurm.store.errors import StoreError
from detslurm.store.frame import decode_json, encode_json
from detslurm.store.run_usage import RunUsage, parse_usage

if TYPE_CHECKING:
    from detslurm.store.experiment import ExperimentDir
    from detslurm.store.store import Store

_KEPT: Final = 100
_TRIALS: Final = 50
# Of a run that is over before that, agents have seen nothing but its end.
_LEAST_SECONDS: Final = 15.0


class UsedResources(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a trial of an experiment used, and its resources."""

    experiment: int
    memory_peak: int | None = None  # the most bytes on one node; None if unavailable
    memory: int | None = None  # the bytes of memory on one node; None if unknown
    cpus_used: float | None = None  # the CPUs that it kept busy on average; None if unavailable
    cpus: int | None = None  # the number of its CPUs; None if unknown


def used_by(experiment: int, usages: Iterable[RunUsage]) -> UsedResources | None:
    """The most that any of these runs used; None if none of them lasted."""
    known = [usage for usage in usages if usage.seconds >= _LEAST_SECONDS]
    if not known:
        return None
    cpus = [u.cpu_seconds / u.seconds for u in known if u.cpu_seconds is not None]
    requested = known[-1].requested
    return UsedResources(
        experiment=experiment,
        memory_peak=max((u.memory_peak for u in known if u.memory_peak is not None), default=None),
        memory=requested.memory,
        cpus_used=max(cpus, default=None),
        cpus=requested.cpus,
    )


def remember_used(directory: ExperimentDir, trial_ids: Iterable[int]) -> None:
    """Keep the use of a finished experiment; a failure costs a note."""
    try:
        trials = [directory.trial(number) for number in list(trial_ids)[-_TRIALS:]]
        ends = (run.end for trial in trials for run in trial.runs())
        usages = (parse_usage(end.usage) for end in ends if end is not None)
        used = used_by(directory.id, (usage for usage in usages if usage is not None))
        if used is None:
            return
        known = _load(directory.store)
        key = _key(directory.config())
        known.pop(key, None)
        kept = dict([*known.items(), (key, used)][-_KEPT:])
        data = encode_json(msgspec.to_builtins(kept))
        fs.replace_file(_path(directory.store), data, sync=False)
    except StoreError:
        pass


def recall_used(store: Store, config: Mapping[str, Any]) -> UsedResources | None:
    """The use of the last similar experiment; None if unknown."""
    return _load(store).get(_key(config))


def _key(config: Mapping[str, Any]) -> str:
    """The key of similar experiments: the same entrypoint and resources."""
    similar = {name: config.get(name) for name in ("entrypoint", "resources", "slurm")}
    return hashlib.sha256(encode_json(similar)).hexdigest()[:16]


def _path(store: Store) -> Path:
    return store.own("used-resources.json")


def _load(store: Store) -> dict[str, UsedResources]:
    try:
        data = decode_json(fs.read_file(_path(store)) or b"{}")
        return msgspec.convert(data, dict[str, UsedResources])
    except (StoreError, ValueError):
        return {}
