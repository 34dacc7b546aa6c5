"""`core.init()`: one object that holds everything a training script asks of detslurm."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import logging
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from msgspec import convert

from detslurm import storage
from detslurm._base.display import Displayed
from detslurm._base.flag import PreemptFlag
from detslurm._base.info import ClusterInfo
from detslurm._base.process import Identity, fatal_error, own_age
from detslurm._base.surviving_signal import survive_preemption_signal
from detslurm.config.run_config import RunConfig, RunSearcher
from detslurm.core._checkpoint import CheckpointContext
from detslurm.core._checkpoint_records import CheckpointRecords
from detslurm.core._console_log import IN_JOB, MetricLines, show_log
from detslurm.core._distributed import DistributedContext
from detslurm.core._lengths import FixedLengths
from detslurm.core._preempt import PreemptContext, PreemptMode, end_with_agent
from detslurm.core._profiler import ProfilerContext
from detslurm.core._recorder import AnyRecorder, Recorder, WorkerRecorder
from detslurm.core._retries import keep_trying, retrying
from detslurm.core._searcher import SearcherContext, Unit, configured_unit
from detslurm.core._software import note_software
from detslurm.core._tensorboard import AutoTensorboard, TensorboardFiles, TensorboardMode
from detslurm.core._train import EarlyExitReason, TrainContext
from detslurm.core._trial import (
    NodeRecorder,
    best_validation,
    collect_partial_checkpoints,
    experiment_of,
    lengths_of,
    trial_of,
)
from detslurm.core._unmanaged_info import UnmanagedInfo
from detslurm.core._unmanaged_job import in_own_script, join_job, on_close
from detslurm.core._usage_reports import UsageReports
from detslurm.errors import InvalidHP, MetricError
from detslurm.storage import Storages
from detslurm.storage.locations import Section
from detslurm.storage.shared_fs import check_access
from detslurm.store import StoreError, TrialDir, fold_trial
from detslurm.store.run_records import StartRecord

if TYPE_CHECKING:
    from detslurm.core._search import TrialSearch

logger = logging.getLogger("detslurm.core")

_INDEPENDENT = ("single", "random", "grid")  # searches in which no result decides

_ALERT_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}


@dataclass(repr=False)
class Context(Displayed):
    """The parts of the Core API, made by `core.init()`; best used as a context manager.

    Without `with`, `start()` and `close()` do the same; a context left open is closed when Python
    ends.

    Attributes:
        checkpoint: Save, restore and delete checkpoints.
        distributed: This process's rank, and collectives among the ranks.
        preempt: Whether to save a checkpoint and exit.
        train: Report metrics, progress and status.
        searcher: The lengths that the search wants this trial to train to.
        profiler: Record system metrics of this node.
        info: The trial, its hyperparameters and its latest checkpoint; None outside a job.
        experimental: Record which checkpoints and model versions the trial uses.
    """

    checkpoint: CheckpointContext
    distributed: DistributedContext
    preempt: PreemptContext
    train: TrainContext
    searcher: SearcherContext
    profiler: ProfilerContext
    info: ClusterInfo | None
    _recorder: AnyRecorder
    _flag: PreemptFlag | None = None
    _tensorboard: AutoTensorboard | None = None
    _on_close: Callable[[str, str], None] | None = None
    _lines: MetricLines | None = None
    _process: int = field(default_factory=os.getpid)
    _closed: bool = False
    _cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _run: StartRecord | None = None
    _worker: tuple[TrialDir, int] | None = None  # the trial and the run; None if unrecorded
    experimental: UsageReports = field(default_factory=UsageReports)

    def __post_init__(self) -> None:
        atexit.register(self._close_at_exit)

    def _facts(self) -> dict[str, Any]:
        trial = self.info.trial if self.info is not None else None
        return {
            "experiment": trial and trial.experiment_id,
            "trial": trial and trial.trial_id,
            "hparams": trial and trial.hparams,
            "rank": self.distributed.rank,
            "size": self.distributed.size,
            "latest_checkpoint": self.info and self.info.latest_checkpoint,
            "closed": self._closed,
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Begin to watch for preemption, as entering the `with` block does."""
        if self._flag is not None:
            survive_preemption_signal(self._flag)
            self._flag.spare_at_exit()
        if self.info is not None:
            _mind_signals()
        self.preempt.start()
        config = RunConfig() if self.info is None else RunConfig.of(self.info.trial._config)
        if config.profiling.enabled and not config.profiling.begin_on_batch:
            self._profile()  # later ones the Trainer counts

    def close(self) -> None:
        """End the run, as leaving the `with` block does; after that nothing can be reported."""
        self._finish(None)

    def _profile(self) -> None:
        try:
            self.profiler.on()
        except RuntimeError as err:
            logger.warning("profiling is enabled, but %s", err)

    def alert(
        self, title: str | None = None, description: str | None = None, level: str = "info"
    ) -> None:
        """Record a message for people, and log it; `detslurm trial describe` shows it.

        Args:
            title: A short text; none by default.
            description: A longer text; none by default.
            level: "debug", "info" (the default), "warn" or "error".

        Raises:
            RuntimeError: After the end of the run, and in a fork of the chief's process.
            TypeError: If the title or the description is no text.
            ValueError: If there is no such level.
        """
        if level not in _ALERT_LEVELS:
            raise ValueError(f"level must be one of {', '.join(_ALERT_LEVELS)}, not {level!r}")
        texts = [text for text in (title, description) if text is not None and text != ""]
        logger.log(_ALERT_LEVELS[level], "alert: %s", ": ".join(texts))
        self._recorder.record(
            {
                "t": "alert",
                "title": title,
                "description": description,
                "level": level,
                "time": time.time(),
            }
        )

    def shards(
        self,
        n_items: int,
        chunk: int,
        *,
        name: str = "default",
        directory: str | os.PathLike[str] | None = None,
    ) -> Iterator[range]:
        """Hand out the numbers from 0 to `n_items`, chunk by chunk, to all workers that ask.

        A worker is a rank. The workers of all trials of an experiment share its chunks, also over
        restarts and preemptions. A chunk is done when its worker asks for the next chunk, and its
        commit is in the store within ten seconds, or as many as there are workers. Each chunk is
        committed once; it may be processed again where its worker was killed before, so write its
        results to files of its own that are renamed when they are whole.

        Chunks of a worker that is known to have ended are handed out again. Where that is unknown,
        they wait until all others are done. The loop ends early when the trial is preempted.

        Args:
            n_items: The number of items.
            chunk: How many items a chunk has: best some minutes of work, at least seconds.
            name: Another name hands all items out again; "default" by default.
            directory: Where the progress is kept, on a file system of all workers. By default that
                is the experiment's directory; by hand each start of a script is an experiment of
                its own, so name one here to go on with an earlier start. In a submitted job it
                must be absolute, because each job works in its own copy of the code.

        Returns:
            An iterator of ranges.

        Raises:
            ValueError: If the counts, the name or the directory make no sense, if the chunks have
                begun with other counts, or if this run is not recorded and `directory` is None.

        Example:
            import detslurm as det

            with det.core.init() as core:
                for items in core.shards(1000, chunk=100):
                    print("items", items.start, "to", items.stop - 1)
        """
        from detslurm.core._shards import ShardIterator, checked_counts
        from detslurm.store import ChunkWorker

        checked_counts(n_items, chunk, name)
        place = None if directory is None else Path(directory)
        if place is not None and not place.is_absolute():
            if self.info is not None and not in_own_script():
                raise ValueError(
                    f"shards() needs an absolute directory in a job, not {str(directory)!r}: each"
                    " job works in its own copy of your code, so no other worker would see it"
                )
            place = place.absolute()
        if place is None and self._worker is not None:
            place = self._worker[0].experiment_path / "shards"
        if place is None:
            raise ValueError("this run is not recorded: give shards() a directory")
        trial, run = self._worker or (None, 0)
        rank, process = self.distributed.rank, str(Identity.own())
        found = ShardIterator(
            place / name,
            n_items,
            chunk,
            ChunkWorker(process, str(trial.path) if trial is not None else "", run, rank),
            should_leave=self.preempt._should_leave,
            report_progress=self.train.report_progress,
        )
        self._cleanup.callback(found.flush)
        return found

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._finish(exc) and isinstance(exc, InvalidHP):
            raise SystemExit(0)

    def _close_at_exit(self) -> None:
        self._finish(fatal_error())

    def _finish(self, exc: BaseException | None) -> bool:
        """Record how the code ended, once; False where that is done, or another process's part."""
        if self._closed or os.getpid() != self._process:  # a forked child only passes by here
            return False
        self._closed = True
        atexit.unregister(self._close_at_exit)
        if isinstance(exc, InvalidHP):
            logger.error("this trial's hyperparameters are invalid: %s", exc)
            self.train._exit_early(EarlyExitReason.INVALID_HP, str(exc))
            self._close("invalid_hp", str(exc))
        elif exc is None or (isinstance(exc, SystemExit) and not exc.code):
            self._close("completed", "the code ended")
        else:
            with contextlib.suppress(OSError, StoreError):  # the user's own error must be seen
                if isinstance(exc, MetricError):
                    self._recorder.commit({"t": "non_retryable", "reason": str(exc)})
                self._close("error", traceback.format_exception_only(exc)[-1].strip())
        return True

    def _close(self, outcome: str, reason: str) -> None:
        with contextlib.ExitStack() as rest:  # each comes to its turn, whatever the others raise
            if self._on_close is not None:
                rest.callback(self._on_close, outcome, reason)
            if self._tensorboard is not None:
                rest.callback(self._tensorboard.close)
            rest.callback(self._recorder.close)
            rest.callback(self.profiler.close)
            # After the ranks have parted: none waits there for a failed rank.
            rest.callback(self._cleanup.close)
            rest.callback(self.distributed.close)
            if self._lines is not None:
                rest.callback(self._lines.close)
            self.preempt.close()


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | dict[str, Any] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> Context:
    """Connect this process to its trial. Use the result as a context manager, or `close()` it.

    Outside a detslurm job the script is recorded all the same, as an experiment of one trial,
    unless the environment has DETSLURM_TRACK=0. There TensorBoard files are written only where the
    code asks for them.

    A block that raises `InvalidHP` ends the trial as invalid, and the process exits with status 0.

    Args:
        distributed: The ranks of this trial; by default this process is the only rank.
        checkpoint_storage: Where to keep checkpoints, in place of the configured storage: a path, a
            `file://`, `s3://` or `gs://` URI, or a mapping like the configuration's section
            `checkpoint_storage` (but not of type `shared_fs`). By default the configuration
            decides; outside a job the checkpoints are kept in the store.
        preempt_mode: The ranks that may call `should_preempt()`, and how they agree. By default all
            ranks call it equally often and get the chief's answer.
        tensorboard_mode: Whether TensorBoard files are written and stored automatically (the
            default) or by `train.upload_tensorboard_files()`.

    Returns:
        The context; its parts work from `start()` on, which entering its `with` block calls.

    Raises:
        ValueError: If the trial has several slots and `distributed` is None, or if
            `checkpoint_storage` is malformed.
        TypeError: If `checkpoint_storage` is neither text nor a mapping.
        RuntimeError: If another process of this node records the run, or if a script or container
            has passed on only some of the job's variables.

    Example:
        import detslurm as det

        with det.core.init() as core:
            for step in range(1, 4):
                core.train.report_training_metrics(step, {"loss": 1 / step})
                if core.preempt.should_preempt():
                    break
    """
    return init_with_info(
        UnmanagedInfo(),
        distributed=distributed,
        checkpoint_storage=checkpoint_storage,
        preempt_mode=preempt_mode,
        tensorboard_mode=tensorboard_mode,
    )


def init_with_info(
    unmanaged_info: UnmanagedInfo,
    *,
    distributed: DistributedContext | None,
    checkpoint_storage: str | dict[str, Any] | None,
    preempt_mode: PreemptMode,
    tensorboard_mode: TensorboardMode,
) -> Context:
    """As `init`; `unmanaged_info` describes an experiment outside of jobs, unused in a job."""
    info = join_job()
    given = _given_storage(checkpoint_storage)
    if distributed is None:
        _refuse_many_slots(info)
    dist = distributed or DistributedContext()
    if info is None or info.task_type != "TRIAL":
        return _init_unmanaged(dist, given, preempt_mode, tensorboard_mode, unmanaged_info)
    return _init_in_job(info, dist, given, preempt_mode, tensorboard_mode)


def _init_in_job(
    info: ClusterInfo,
    dist: DistributedContext,
    given: Section | None,
    preempt_mode: PreemptMode,
    tensorboard_mode: TensorboardMode,
) -> Context:
    trial, run = trial_of(info), info.trial._trial_run_id
    is_chief = dist.rank == 0
    view, config = keep_trying(lambda: fold_trial(trial)), RunConfig.of(info.trial._config)
    configured, searcher = config.checkpoint_storage, config.searcher
    place = storage.from_config(given or configured)
    store, elsewhere = retrying(place), _elsewhere(given, configured)
    recorder: AnyRecorder = WorkerRecorder(trial.rank_records_path(run, dist.rank), dist.rank)
    if is_chief and isinstance(place, storage.SharedFS) and info.latest_checkpoint is None:
        check_access(store)  # a run that begins from a checkpoint may only want to read
    if is_chief:
        recorder = keep_trying(lambda: Recorder.of(trial.records_path(run)))
    if is_chief:
        note_software(trial, run)
    if is_chief and not recorder.shared:  # the other may be saving now
        collect_partial_checkpoints(
            trial, run, view, Storages(configured, experiment_of(info).store.path)
        )
    _note_storage(recorder, elsewhere)
    flag = PreemptFlag.of_this_node()
    if flag is not None:
        end_with_agent(flag)
    search = keep_trying(lambda: _search(info, flag)) if is_chief else None
    files = TensorboardFiles(store, trial, dist.rank)
    auto = AutoTensorboard(files) if is_chief and tensorboard_mode is TensorboardMode.AUTO else None
    lines = None
    if is_chief:
        show_log()
        lines = MetricLines(IN_JOB)
        if on_close() is not None:  # a batch script of the user's own
            from detslurm.core._unmanaged_script import note_recorded

            note_recorded(trial)
    records = CheckpointRecords(recorder, trial, run, needs_steps=True, location=elsewhere)
    context = Context(
        checkpoint=CheckpointContext(dist, store, records, auto),
        distributed=dist,
        preempt=PreemptContext(dist, flag, preempt_mode, partial(_note_question, recorder)),
        train=TrainContext(
            dist,
            recorder,
            flag=flag,
            best_validation=best_validation(info, recorder),
            search=search,
            metadata=view.metadata or None,
            tensorboard_mode=tensorboard_mode,
            tensorboard=files,
            auto_tensorboard=auto,
            lines=lines,
            compared=() if in_own_script() else _numeric_metrics(searcher),
            chief_decides=not is_chief
            and (searcher.name not in _INDEPENDENT or searcher.stop is not None),
        ),
        searcher=SearcherContext(
            dist,
            recorder,
            lengths_of(searcher, view, search),
            configured_unit(searcher),
        ),
        profiler=ProfilerContext(
            info.agent_id,
            dist,
            nullcontext(recorder) if is_chief else NodeRecorder(trial, run, dist.cross_rank),
        ),
        info=info,
        _recorder=recorder,
        _flag=flag,
        _tensorboard=auto,
        _on_close=on_close(),
        _lines=lines,
        _worker=(trial, run),
        experimental=UsageReports(trial, is_chief=is_chief),
    )
    if is_chief and not recorder.shared and (age := own_age()) is not None:
        context.train._spent("start", age)
    return context


def _numeric_metrics(searcher: RunSearcher) -> tuple[str, ...]:
    """The metrics that must be numbers where they are reported; custom methods take any."""
    return searcher.compared if searcher.name != "custom" else ()


def _search(info: ClusterInfo, flag: PreemptFlag | None) -> TrialSearch | None:
    """This trial's part in its experiment's search; None where no results are waited for."""
    experiment = experiment_of(info)
    if not experiment.created().search:
        return None
    from detslurm.core._search import search_of  # only here: most trials are in no search

    return search_of(experiment, info, must_leave=lambda: flag is not None and flag.preempt)


def _init_unmanaged(
    dist: DistributedContext,
    given: Section | None,
    preempt_mode: PreemptMode,
    tensorboard_mode: TensorboardMode,
    unmanaged_info: UnmanagedInfo,
) -> Context:
    from detslurm.core._unmanaged_script import record_unmanaged  # only here: jobs never need it

    script = record_unmanaged(dist, unmanaged_info)
    store = retrying(storage.from_config(given or script.storage))
    elsewhere = _elsewhere(given, script.storage)
    _note_storage(script.recorder, elsewhere)
    files = auto = lines = None
    records = CheckpointRecords(
        script.recorder, script.trial, needs_steps=False, location=elsewhere
    )
    if script.trial is not None:
        files = TensorboardFiles(store, script.trial, dist.rank)
        if dist.rank == 0:
            lines = MetricLines()
            if tensorboard_mode is TensorboardMode.AUTO:
                auto = AutoTensorboard(files, writes_metrics=False)
    return Context(
        checkpoint=CheckpointContext(dist, store, records, auto),
        distributed=dist,
        preempt=PreemptContext(dist, None, preempt_mode),
        train=TrainContext(
            dist,
            script.recorder,
            flag=None,
            best_validation=lambda: None,
            metadata=script.metadata,
            tensorboard_mode=tensorboard_mode,
            tensorboard=files,
            auto_tensorboard=auto,
            lines=lines,
            compared=_numeric_metrics(convert(unmanaged_info.searcher or {}, RunSearcher)),
        ),
        searcher=SearcherContext(dist, script.recorder, FixedLengths([1]), Unit.EPOCHS),
        profiler=ProfilerContext(socket.gethostname(), dist, nullcontext(script.recorder)),
        info=None,
        _recorder=script.recorder,
        _tensorboard=auto,
        _on_close=script.end,
        _lines=lines,
        _run=script.start,
        _worker=None
        if script.trial is None or script.start is None
        else (script.trial, script.start.run),
        experimental=UsageReports(script.trial, is_chief=dist.rank == 0),
    )


def _refuse_many_slots(info: ClusterInfo | None) -> None:
    if info is None:
        return
    several_nodes = info._rendezvous_info is not None and len(info.container_addrs) > 1
    if several_nodes or len(info.slot_ids) > 1:
        raise ValueError(
            "you must provide a valid DistributedContext for a multi-slot task; start it with"
            " detslurm.launch.torch_distributed (or another launcher); for more CPUs of one process"
            " keep slots_per_trial: 1 and set slurm.sbatch_args: [--cpus-per-task=N]"
        )


def _given_storage(value: str | dict[str, Any] | None) -> Section | None:
    """The storage that the code names in place of the configured storage, checked."""
    if value is None:
        return None
    if isinstance(value, dict):
        if value.get("type") == "shared_fs":
            raise ValueError("checkpoint_storage of type shared_fs must be given as a path")
        storage.from_config(value)
        return value
    if not isinstance(value, str):
        raise TypeError(f"checkpoint_storage must be a str or a dict, not {type(value).__name__}")
    return storage.section_of(value)


def _elsewhere(given: Section | None, configured: Section) -> dict[str, Any] | None:
    """The record of the storage that the code names; None for the configured storage."""
    if given is None or (found := storage.location(given)) == storage.location(configured):
        return None
    return found


def _note_storage(recorder: AnyRecorder, elsewhere: Section | None) -> None:
    """Record where a run keeps more than checkpoints: TensorBoard's files."""
    if elsewhere is not None:
        recorder.commit({"t": "storage", "storage": elsewhere})


def _note_question(recorder: AnyRecorder) -> None:
    """Record that the code calls `should_preempt()`: code that never does ignores a pause."""
    with contextlib.suppress(RuntimeError):  # in a fork of the chief's process
        recorder.record({"t": "asks_to_preempt"})
        recorder.flush()  # a pause may come next


def _mind_signals() -> None:
    """Dump the stack on SIGUSR1; SIGUSR2, which is for the runner, may come here as well."""
    if threading.current_thread() is not threading.main_thread():
        return
    # In a batch script of the user's own it may also request to save and leave.
    chain = callable(signal.getsignal(signal.SIGUSR1))
    # Of the main thread alone, which gets the signal: a handler in C holds no lock,
    # and to walk the frames of a thread that runs meanwhile ends the process every hundredth time.
    faulthandler.register(signal.SIGUSR1, all_threads=False, chain=chain)
    if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR2, lambda *_: None)
