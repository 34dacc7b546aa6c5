"""The files of a checkpoint, as Determined's PyTorchTrial lays them out; how to read any of them.

state_dict.pth    models, optimizers, schedulers, callbacks, random numbers
trial_state.pkl   counters
detslurm.json     more of them, which Determined does not have
load_data.json    how to make the trial's object again
code/             the code that trained, or a link to the experiment's frozen copy
metadata.json     written by the Core API
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from detslurm._base.trust import NO_DIGEST, is_unverified, others_can_change
from detslurm.core._retries import keep_trying
from detslurm.pytorch.checkpointing._disk_full import faults_of_torch

logger = logging.getLogger("detslurm.pytorch")

STATE = "state_dict.pth"

_FOLDERS = ("", "determined", "pedl")
_STATES = (STATE, "checkpoint.pt")
_COUNTERS = ("trial_state.pkl", "workload_sequencer.pkl")
_OURS = "detslurm.json"


def save(state: Mapping[str, Any], file: Path) -> None:
    """Write tensors and plain data for `read_file()`."""
    write_torch(dict(state), file)
    # Files that a group can write would not be unpickled.
    keep_trying(lambda: file.chmod(file.stat().st_mode & ~0o022))


def write_torch(state: Any, file: Path) -> None:
    """Write a file of torch, tried for minutes while the file system fails."""

    def write() -> None:
        with faults_of_torch(file):
            torch.save(state, file)

    keep_trying(write)


def write(
    path: Path, counters: tuple[Mapping[str, Any], Mapping[str, Any]], load_data: Mapping[str, Any]
) -> None:
    """Write what every kind of trial has; `counters` are Determined's and ours."""
    theirs, ours = counters
    contents = {
        _COUNTERS[0]: pickle.dumps(dict(theirs)),
        _OURS: json.dumps(dict(ours)).encode(),
        "load_data.json": json.dumps(load_data, indent=2, default=str).encode(),
    }
    for name, data in contents.items():
        keep_trying(partial((path / name).write_bytes, data))


def read_state(path: Path, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The contents of `state_dict.pth`, as `read_file()` gives them. Raises `FileNotFoundError`."""
    file = _find(path, _STATES)
    if file is None:
        raise FileNotFoundError(f"there is no {STATE} in {path}: not a PyTorchTrial's")
    return read_file(file, options)


def read_file(file: Path, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The contents of a file of torch, on the CPU.

    It is read without running code in it. Where that is not possible, because a callback or an
    optimizer keeps objects of its own, it is read by pickle, with a warning; a file that others can
    write raises `pickle.UnpicklingError`. `weights_only` in `options` decides it beforehand.
    """
    chosen = {"map_location": "cpu", **(options or {})}
    if "weights_only" in chosen:
        return _loaded(file, chosen)
    try:
        return _loaded(file, {**chosen, "weights_only": True})
    except pickle.UnpicklingError as err:
        problem = f"{file} holds more than tensors and plain data ({str(err).splitlines()[0]})"
        if others_can_change(file):
            why = NO_DIGEST if is_unverified(file) else "others can write it"
            raise pickle.UnpicklingError(
                f"{problem}, and {why}: pickle would run code that is in it. If you"
                " trust them, copy the checkpoint and use your copy, or load it with"
                " torch_load_kwargs={'weights_only': False}"
            ) from err
        logger.warning(
            "%s, and is read by pickle, which runs code that is in it: load only what you trust",
            problem,
        )
        return _loaded(file, {**chosen, "weights_only": False})


def _loaded(file: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    with torch.serialization.safe_globals(_numpy_globals()):
        state: dict[str, Any] = torch.load(file, **options)
    return state


def _numpy_globals() -> list[Any]:
    """Pickled arrays of numpy; Determined keeps numpy's random state as an array."""
    import numpy as np

    reconstruct = np.empty(0).__reduce__()[0]
    kinds = [type(np.dtype(name)) for name in ("uint32", "uint64", "int64", "float32", "float64")]
    old = (reconstruct, "numpy.core.multiarray._reconstruct")
    return [old, reconstruct, np.ndarray, np.dtype, *kinds]


def read_counters(path: Path) -> dict[str, Any]:
    """The contents of `trial_state.pkl` and `detslurm.json`; plain data only."""
    file = _find(path, _COUNTERS)
    if file is None:
        return {}
    with file.open("rb") as stream:
        found = _PlainUnpickler(stream).load()
    return {**found, **_json(path / _OURS)} if isinstance(found, dict) else {}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a trial's counters are plain data, not {module}.{name}")


def read_load_data(path: Path) -> dict[str, Any]:
    """The contents of `load_data.json`, {} when there is none."""
    return _json(path / "load_data.json")


def read_metadata(path: Path) -> dict[str, Any]:
    """The contents of `metadata.json`, {} when there is none."""
    return _json(path / "metadata.json")


def _json(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.exists() else {}


def read_steps(path: Path) -> int:
    """The steps in the checkpoint's metadata, 0 when there are none."""
    return int(read_metadata(path).get("steps_completed") or 0)


def _find(path: Path, names: tuple[str, ...]) -> Path | None:
    candidates = (path / folder / name for name in names for folder in _FOLDERS)
    return next((file for file in candidates if file.exists()), None)
