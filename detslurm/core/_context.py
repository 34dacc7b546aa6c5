"""`core.init()`: one object that holds everything a training script asks of detslurm."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from detslurm import storage
from detslurm._errors import InvalidHP
from detslurm._flag import PreemptFlag
from detslurm._info import EXPERIMENT_DIR_ENV, ClusterInfo, get_cluster_info, on_close
from detslurm.core._checkpoint import CheckpointContext
from detslurm.core._distributed import DistributedContext
from detslurm.core._preempt import (
    PreemptContext,
    PreemptMode,
    attach_flag,
    survive_preemption_signal,
)
from detslurm.core._recorder import AnyRecorder, NullRecorder, Recorder
from detslurm.core._searcher import SearcherContext, Unit, length_and_unit
from detslurm.core._tracking import Tracked, track_by_hand
from detslurm.core._train import EarlyExitReason, TrainContext
from detslurm.storage import SharedFS, Storage
from detslurm.store import (
    ExperimentDir,
    Store,
    StoreError,
    TrialDir,
    TrialView,
    fold_experiment,
    fold_trial,
)

logger = logging.getLogger("detslurm.core")


@dataclass
class Context:
    """The parts of the Core API; use it as a context manager, made by `core.init()`."""

    checkpoint: CheckpointContext
    distributed: DistributedContext
    preempt: PreemptContext
    train: TrainContext
    searcher: SearcherContext
    info: ClusterInfo | None
    _recorder: AnyRecorder
    _flag: PreemptFlag | None = None
    _on_close: Callable[[str, str], None] | None = None

    def __enter__(self) -> Self:
        if self._flag is not None:
            survive_preemption_signal(self._flag)
        if self.info is not None:
            _dump_stacks_on_usr1()
        self.preempt.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if isinstance(exc, InvalidHP):
            logger.error("this trial's hyperparameters are invalid: %s", exc)
            self.train.report_early_exit(EarlyExitReason.INVALID_HP)
            self._close("invalid_hp", str(exc))
            raise SystemExit(0)
        if exc is None or (isinstance(exc, SystemExit) and not exc.code):
            self._close("completed", "the code ended")
        else:
            with contextlib.suppress(OSError, StoreError):  # the user's own error is the one to see
                self._close("error", traceback.format_exception_only(exc)[-1].strip())

    def _close(self, outcome: str, reason: str) -> None:
        self.preempt.close()
        self.distributed.close()
        try:
            self._recorder.close()
        finally:
            if self._on_close is not None:
                self._on_close(outcome, reason)


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | dict[str, Any] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
) -> Context:
    """Connect this process to its trial; use the result as a context manager.

    Outside a detslurm job the script is tracked all the same, as an experiment of one trial, unless
    DETSLURM_TRACK=0. `checkpoint_storage` (a path, a `file://`, `s3://` or `gs://` URI, or a
    `checkpoint_storage` section) replaces the configured one. Raises `ValueError` when a task of
    several slots comes without `distributed`.
    """
    info = get_cluster_info()
    given = _given_storage(checkpoint_storage)
    if distributed is None:
        _refuse_many_slots(info)
    dist = distributed or DistributedContext._single()
    if info is None or info.task_type != "TRIAL":
        return _init_by_hand(dist, given, preempt_mode)
    trial = _trial_of(info)
    run = info.trial._trial_run_id
    is_chief = dist.rank == 0
    view = fold_trial(trial)
    store = given or storage.from_config(info.trial._config["checkpoint_storage"])
    if is_chief:
        _collect_partial_checkpoints(view, store)
    recorder = Recorder(trial.records_path(run)) if is_chief else NullRecorder()
    flag = attach_flag()
    lengths, units = _operations(info.trial._config, view)
    return Context(
        checkpoint=CheckpointContext(dist, store, recorder, needs_steps=True),
        distributed=dist,
        preempt=PreemptContext(dist, recorder, flag, preempt_mode),
        train=TrainContext(
            dist,
            recorder,
            flag=flag,
            best_validation=lambda: _best_validation(info),
            metadata=view.metadata or None,
        ),
        searcher=SearcherContext(dist, recorder, lengths, units),
        info=info,
        _recorder=recorder,
        _flag=flag,
        _on_close=on_close(),
    )


def _init_by_hand(
    dist: DistributedContext, given: Storage | None, preempt_mode: PreemptMode
) -> Context:
    tracked: Tracked = track_by_hand(dist)
    return Context(
        checkpoint=CheckpointContext(
            dist, given or SharedFS(tracked.checkpoints), tracked.recorder, needs_steps=False
        ),
        distributed=dist,
        preempt=PreemptContext(dist, tracked.recorder, None, preempt_mode),
        train=TrainContext(
            dist,
            tracked.recorder,
            flag=None,
            best_validation=lambda: None,
            metadata=None,
        ),
        searcher=SearcherContext(dist, tracked.recorder, [1], Unit.EPOCHS),
        info=None,
        _recorder=tracked.recorder,
        _on_close=tracked.end,
    )


def _refuse_many_slots(info: ClusterInfo | None) -> None:
    if info is None:
        return
    several_nodes = info._rendezvous_info is not None and len(info.container_addrs) > 1
    if several_nodes or len(info.slot_ids) > 1:
        raise ValueError("you must provide a valid DistributedContext for a multi-slot task")


def _given_storage(value: str | dict[str, Any] | None) -> Storage | None:
    if value is None:
        return None
    if isinstance(value, dict):
        if value.get("type") == "shared_fs":
            raise ValueError("checkpoint_storage of type shared_fs must be given as a path")
        return storage.from_config(value)
    if not isinstance(value, str):
        raise TypeError(f"checkpoint_storage must be a str or a dict, not {type(value).__name__}")
    return storage.from_uri(value)


def _trial_of(info: ClusterInfo) -> TrialDir:
    return _experiment_of(info).trial(info.trial.trial_id)


def _experiment_of(info: ClusterInfo) -> ExperimentDir:
    path = Path(os.environ[EXPERIMENT_DIR_ENV])
    return ExperimentDir(Store(path.parent.parent), info.trial.experiment_id)


def _operations(config: dict[str, Any], view: TrialView) -> tuple[list[int] | None, Unit | None]:
    """The lengths that the search still wants of this trial, and their unit."""
    length, unit = length_and_unit(config["searcher"].get("max_length"))
    if length is None:
        return None, None
    done = (view.length or {}).get("length", -1) >= length
    return ([] if done else [length]), unit


def _collect_partial_checkpoints(view: TrialView, store: Storage) -> None:
    """Remove what earlier runs of this trial began to save and never finished."""
    for storage_id in view.unfinished_checkpoints:
        try:
            store.discard(storage_id)
        except OSError as err:
            logger.warning("can't remove the unfinished checkpoint %s: %s", storage_id, err)


def _best_validation(info: ClusterInfo) -> float | None:
    return fold_experiment(_experiment_of(info)).best_value


def _dump_stacks_on_usr1() -> None:
    if threading.current_thread() is threading.main_thread():
        faulthandler.register(signal.SIGUSR1, all_threads=True)
