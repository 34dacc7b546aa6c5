"""Scripts run by hand are tracked: an experiment of one trial in the same store."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detslurm._process import Identity, is_interactive
from detslurm.core._console import show_log
from detslurm.core._distributed import DistributedContext
from detslurm.core._heartbeat import Heartbeat
from detslurm.core._recorder import AnyRecorder, NullRecorder, Recorder
from detslurm.store import ExperimentDir, Store, StoreError, TrialDir
from detslurm.store.unmanaged import METRIC, unmanaged_config

logger = logging.getLogger("detslurm.core")

SWITCH = "DETSLURM_TRACK"


@dataclass(frozen=True)
class Tracked:
    """Where the records and checkpoints of a script go, and how to say that it ended."""

    recorder: AnyRecorder
    checkpoints: Path
    end: Callable[[str, str], None] | None
    trial: TrialDir | None = None


def track_by_hand(dist: DistributedContext) -> Tracked:
    """Start to track this process; a store that can't be written is a warning, not an error."""
    if os.environ.get(SWITCH, "1") == "0":
        return _untracked()
    try:
        return _tracked(dist)
    except (StoreError, OSError) as err:
        logger.warning("this run is not tracked: the store can't be written (%s)", err)
        return _untracked()


def _untracked() -> Tracked:
    checkpoints = Path(tempfile.gettempdir()) / f"detslurm-{os.getuid()}-checkpoints"
    with contextlib.suppress(FileExistsError):
        checkpoints.mkdir(mode=0o700)
    if checkpoints.lstat().st_uid != os.getuid():  # what others can write is not to be unpickled
        raise PermissionError(f"{checkpoints} belongs to another user; set TMPDIR to your own")
    return Tracked(NullRecorder(), checkpoints, None)


def _tracked(dist: DistributedContext) -> Tracked:
    store = Store.open()
    checkpoints = store.path / "checkpoints"
    if dist.rank != 0:
        return Tracked(NullRecorder(), checkpoints, None)
    show_log()
    experiment = _new_experiment(store, checkpoints)
    trial = experiment.trial(experiment.created()["first_trial"])
    trial.open_run(_start(trial))
    note_recorded(trial)
    recorder = Recorder.of(trial.records_path(1))
    heartbeat = Heartbeat(experiment, trial, 1, lambda: _stop(trial, recorder))

    def end(outcome: str, reason: str) -> None:
        heartbeat.close()
        word = {"outcome": outcome, "reason": reason, "exit_code": None, "time": time.time()}
        trial.write_end(1, word)

    return Tracked(recorder, checkpoints, end, trial)


def _new_experiment(store: Store, checkpoints: Path) -> ExperimentDir:
    experiment = store.new_experiment()
    name = Path(sys.argv[0]).name or "interactive"
    trial_id = store.reserve_trials(experiment.id, 1)
    experiment.prepare_trials(trial_id, 1)
    storage = {"type": "shared_fs", "host_path": str(checkpoints)}
    experiment.write_config(
        unmanaged_config(name, list(filter(None, sys.argv)) or [name], storage), ""
    )
    created = {"name": name, "first_trial": trial_id, "trials": 1}
    experiment.create({**created, "managed": False, "metric": METRIC})
    return experiment


def _start(trial: TrialDir) -> dict[str, Any]:
    host = socket.gethostname()
    return {
        "trial": trial.id,
        "experiment": trial.experiment_id,
        "job": {"cluster": "none", "ref": f"{host}:{os.getpid()}", "nodes": [host]},
        "process": str(Identity.own()),
        "interactive": is_interactive(),
        "host": host,
        "time": time.time(),
        "hparams": {},
        "seed": 0,
        "resume": None,
    }


def note_recorded(trial: TrialDir) -> None:
    """Say where a run that was not submitted can be found."""
    logger.info(
        "recorded as experiment %d; `detslurm trial describe %d` shows it",
        trial.experiment_id,
        trial.id,
    )


def _stop(trial: TrialDir, recorder: Recorder) -> None:
    """The user has killed the experiment: end this process, but not somebody's open session."""
    recorder.refuse(f"experiment {trial.experiment_id} was killed: nothing more is recorded")
    if not is_interactive():
        logger.warning("experiment %d was killed", trial.experiment_id)
        os.kill(os.getpid(), signal.SIGTERM)
