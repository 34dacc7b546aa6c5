"""Unmanaged scripts, outside of jobs, are recorded as experiments of one trial each."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detslurm._base import contract
from detslurm._base.process import Identity, is_interactive
from detslurm.config.secret_values import masked_values
from detslurm.core._collective import run_collectively
from detslurm.core._console_log import show_log
from detslurm.core._distributed import DistributedContext
from detslurm.core._heartbeat import Heartbeat
from detslurm.core._metrics import plain
from detslurm.core._recorder import AnyRecorder, NullRecorder, Recorder, WorkerRecorder
from detslurm.core._software import note_software
from detslurm.core._unmanaged_info import UnmanagedInfo
from detslurm.core._unmanaged_trial import unmanaged_trial
from detslurm.exec.hardware import hardware
from detslurm.store import ExperimentDir, Store, StoreError, TrialDir, fold_trial
from detslurm.store.reading import latest_of
from detslurm.store.run_records import StartRecord

logger = logging.getLogger("detslurm.core")


@dataclass(frozen=True)
class UnmanagedScript:
    """Where the records and checkpoints of a script go, and how to record its end."""

    recorder: AnyRecorder
    storage: Mapping[str, Any]
    end: Callable[[str, str], None] | None
    trial: TrialDir | None = None
    start: StartRecord | None = None
    metadata: Mapping[str, Any] | None = None  # of a trial that was there before


def record_unmanaged(dist: DistributedContext, unmanaged_info: UnmanagedInfo) -> UnmanagedScript:
    """Start to track this process; a store that can't be written is a warning, not an error."""
    chief: UnmanagedScript | None = None

    def begin() -> UnmanagedScript | None:
        nonlocal chief
        if dist.rank == 0:
            chief = _recorded_if_possible(unmanaged_info)
        if chief is None or chief.trial is None:
            return None
        return replace(chief, recorder=NullRecorder(), end=None)

    # The chief alone writes, so it alone learns whether that works: the others follow it, for all
    # save into one directory, and what any rank keeps or deletes is the trial's.
    followed = run_collectively(dist, begin, lambda found: found[0])
    return chief or _as_worker(followed, dist.rank) or _unrecorded()


def _as_worker(chief: UnmanagedScript | None, rank: int) -> UnmanagedScript | None:
    if chief is None or chief.trial is None or chief.start is None:
        return None
    path = chief.trial.rank_records_path(chief.start.run, rank)
    return replace(chief, recorder=WorkerRecorder(path, rank))


def _recorded_if_possible(unmanaged_info: UnmanagedInfo) -> UnmanagedScript:
    if os.environ.get(contract.TRACK, "1") == "0":
        return _unrecorded()
    try:
        return _recorded(unmanaged_info)
    except (StoreError, OSError) as err:
        logger.warning(
            "this run is not recorded: the store can't be written (%s). Checkpoints for which the"
            " script names no storage go to %s on this node: remove them there yourself",
            err,
            _checkpoints(),
        )
        return _unrecorded()


def _unrecorded() -> UnmanagedScript:
    checkpoints = _checkpoints()
    with contextlib.suppress(FileExistsError):
        checkpoints.mkdir(mode=0o700)
    if checkpoints.lstat().st_uid != os.getuid():  # what others can write is not to be unpickled
        raise PermissionError(f"{checkpoints} belongs to another user; set TMPDIR to your own")
    return UnmanagedScript(NullRecorder(), _section(checkpoints), None)


def _checkpoints() -> Path:
    return Path(tempfile.gettempdir()) / f"detslurm-{os.getuid()}-checkpoints"


def _section(checkpoints: Path) -> dict[str, Any]:
    return {"type": "shared_fs", "host_path": str(checkpoints)}


def _recorded(unmanaged_info: UnmanagedInfo) -> UnmanagedScript:
    store = Store.open()
    storage = _section(store.path / "checkpoints")
    show_log()
    trial, seen = unmanaged_trial(store, unmanaged_info, storage)
    metadata = None
    if unmanaged_info.external_trial_id is not None:
        metadata = fold_trial(trial).metadata or None
    start = trial.open_run(_start(trial, unmanaged_info))
    if unmanaged_info.external_experiment_id is not None:
        store.touch(trial.experiment_id)  # it may have been over before
    note_recorded(trial)
    run = start.run
    note_software(trial, run)
    recorder = Recorder.of(trial.records_path(run))
    experiment = ExperimentDir(store, trial.experiment_id)
    heartbeat = Heartbeat(experiment, trial, run, lambda: _stop(trial, recorder), seen)

    def end(outcome: str, reason: str) -> None:
        heartbeat.close()
        record = {"outcome": outcome, "reason": reason, "exit_code": None, "time": time.time()}
        trial.write_end(run, record)

    return UnmanagedScript(recorder, storage, end, trial, start, metadata)


def _start(trial: TrialDir, unmanaged_info: UnmanagedInfo) -> dict[str, Any]:
    host, latest = socket.gethostname(), latest_of(trial)
    return {
        "trial": trial.id,
        "experiment": trial.experiment_id,
        "job": {"cluster": "none", "ref": f"{host}:{os.getpid()}", "nodes": [host]},
        "process": str(Identity.own()),
        "interactive": is_interactive(),
        "host": host,
        "hardware": hardware(),
        "time": time.time(),
        "hparams": masked_values(plain(unmanaged_info.hparams or {})),
        "seed": 0,
        "resume": {"uuid": latest.uuid, "steps": latest.steps} if latest else None,
        "continues": unmanaged_info.external_trial_id is not None,
    }


def note_recorded(trial: TrialDir) -> None:
    """Log where a run that was not submitted can be found."""
    logger.info(
        "recorded as experiment %d; `detslurm trial describe %d` shows it",
        trial.experiment_id,
        trial.id,
    )


def _stop(trial: TrialDir, recorder: Recorder) -> None:
    """The user has killed the experiment: end this process, unless it is an open session."""
    recorder.refuse(f"experiment {trial.experiment_id} was killed: nothing more is recorded")
    if not is_interactive():
        logger.warning("experiment %d was killed", trial.experiment_id)
        os.kill(os.getpid(), signal.SIGTERM)
