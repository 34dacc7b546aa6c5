"""A trial's view of its surroundings, for every kind of training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from detslurm._base.node_files import make_directory
from detslurm.core import Context, DistributedContext
from detslurm.errors import InternalException, InvalidExperimentException
from detslurm.pytorch._data import to_device
from detslurm.pytorch._reducer import MetricReducer, Reducers

logger = logging.getLogger("detslurm.pytorch")


class TrialContext:
    """Hyperparameters, configuration, batch sizes, peers, and the request to stop.

    Methods that return a hyperparameter, a batch size or the configuration raise `ValueError`
    where there is none. Those about the current batch and epoch raise `InternalException` before
    training has begun.
    """

    def __init__(
        self,
        core_context: Context | None,
        trial_seed: int | None,
        hparams: Mapping[str, Any] | None,
        slots_per_trial: int,
        num_gpus: int,
        exp_conf: Mapping[str, Any] | None,
        steps_completed: int,
        managed_training: bool,
        debug_enabled: bool = False,
        distributed: DistributedContext | None = None,
    ) -> None:
        dist = distributed or (core_context.distributed if core_context is not None else None)
        assert dist is not None
        self._core = core_context
        self._trial_seed = trial_seed
        self._hparams = None if hparams is None else dict(hparams)
        self._exp_conf = None if exp_conf is None else dict(exp_conf)
        self._steps_completed = steps_completed
        self._managed = managed_training
        self._debug = debug_enabled
        self.distributed = dist
        self.device = device_of(num_gpus, dist)
        self.profiler: Any = None
        self._reducers = Reducers(sends=dist.size > 1)
        self._reproducible = True
        self._saves_in_background = False
        self._warned_types: set[type] = set()
        self._current_batch: int | None = None
        self._epoch_len: int | None = None
        self._fitted = False
        self._stop_requested = False
        self._tensorboard_logging = True
        self._writer: Any = None
        self._scratch: Path | None = None
        self._batch_sizes: tuple[int, int] | None = None
        if self._hparams and "global_batch_size" in self._hparams:
            total = int(self._hparams["global_batch_size"])
            self._batch_sizes = total, _per_slot(total, max(slots_per_trial, 1))

    def get_experiment_config(self) -> dict[str, Any]:
        """Return the experiment's configuration; outside of jobs `init(exp_conf=...)` takes it."""
        if self._exp_conf is None:
            raise ValueError(
                "there is no experiment configuration: outside of a job, pass it to"
                " init(exp_conf=...)"
            )
        return self._exp_conf

    def get_data_config(self) -> dict[str, Any]:
        """Return the `data` section of the experiment's configuration."""
        data: dict[str, Any] = self.get_experiment_config().get("data") or {}
        return data

    def get_experiment_id(self) -> int:
        """Return the id of this trial's experiment; 1 outside of jobs."""
        info = self._core.info if self._core is not None else None
        return 1 if info is None else info.trial.experiment_id

    def get_trial_id(self) -> int:
        """Return the id of this trial; 1 outside of jobs."""
        info = self._core.info if self._core is not None else None
        return 1 if info is None else info.trial.trial_id

    def get_hparams(self) -> dict[str, Any]:
        """Return all hyperparameters by name, as they were given to `init()`."""
        if self._hparams is None:
            raise ValueError(
                "there are no hyperparameters: pass them with init(hparams=...);"
                " in a job they are detslurm.get_cluster_info().trial.hparams"
            )
        return self._hparams

    def get_hparam(self, name: str) -> Any:
        """Return the hyperparameter `name`."""
        hparams = self.get_hparams()
        if name not in hparams:
            raise ValueError(
                f"Could not find name '{name}' in experiment hyperparameters."
                f" There are: {', '.join(sorted(map(str, hparams))) or 'none'}."
            )
        return hparams[name]

    def get_global_batch_size(self) -> int:
        """Return the number of records in a batch over all slots: the hyperparameter
        `global_batch_size`.
        """
        return self._sizes()[0]

    def get_per_slot_batch_size(self) -> int:
        """Return this slot's part of `global_batch_size`, rounded down."""
        return self._sizes()[1]

    def _sizes(self) -> tuple[int, int]:
        if self._batch_sizes is None:
            raise ValueError(
                "batch sizes follow from the hyperparameter global_batch_size, which is not set:"
                " add it to the hyperparameters"
            )
        return self._batch_sizes

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Ask to end training, or not to, by `stop_requested`: after this batch come a validation
        and a checkpoint, then `fit()` returns.

        With several ranks the request of any of them counts for all, at the next report at the
        latest. Anything but True and False raises `AssertionError`.
        """
        assert isinstance(stop_requested, bool), (
            f"set_stop_requested() takes True or False, not {stop_requested!r}"
        )
        self._stop_requested = stop_requested

    def get_stop_requested(self) -> bool:
        """Return whether `set_stop_requested(True)` was called."""
        return self._stop_requested

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        """Choose by `enable_tensorboard_logging` whether metrics are written to TensorBoard files
        and these are kept with the trial. Anything but True and False raises `AssertionError`.
        """
        assert isinstance(enable_tensorboard_logging, bool), (
            "set_enable_tensorboard_logging() takes True or False,"
            f" not {enable_tensorboard_logging!r}"
        )
        self._tensorboard_logging = enable_tensorboard_logging
        if self._core is not None and self._core._tensorboard is not None:
            self._core._tensorboard.enabled = enable_tensorboard_logging

    def get_enable_tensorboard_logging(self) -> bool:
        """Return whether metrics are written to TensorBoard files."""
        return self._tensorboard_logging

    def get_tensorboard_path(self) -> Path:
        """Return a directory for TensorBoard files, which are kept with the trial.

        It is a temporary one where nothing is recorded, or the trial was loaded from a checkpoint.
        """
        if self._core is not None:
            with suppress(ValueError):  # it is not recorded
                return self._core.train.get_tensorboard_path()
        if self._scratch is None:
            self._scratch = make_directory("tensorboard")
        return self._scratch

    def get_tensorboard_writer(self) -> Any:
        """Return a `torch.utils.tensorboard.SummaryWriter` for the directory of
        `get_tensorboard_path()`. The chief's calls of its `add_image`, `add_figure` and
        `add_histogram` with a step make artifacts of the trial, too.
        """
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(log_dir=str(self.get_tensorboard_path()))
            if self._core is not None and self._core.distributed.rank == 0:
                from detslurm.pytorch._tensorboard_bridge import report_what_is_added

                report_what_is_added(self._writer, self._core.train)
        return self._writer

    def wrap_reducer(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer:
        """Register a metric of your own.

        Args:
            reducer: A `MetricReducer`, or a function of the list of all values. A function's values
                come from calling `update(value)` on the result.
            name: The name of the metric. By default the reducer gives a dict of metrics.
            for_training: Whether it gives training metrics; on by default.
            for_validation: Whether it gives validation metrics; on by default.

        Returns:
            The reducer.
        """
        return self._reducers.wrap(reducer, name, for_training, for_validation)

    def to_device(self, data: Any) -> Any:
        """Return `data` on this slot's device: tensors and arrays, alone or in containers."""
        return to_device(data, self.device, self._warned_types)

    def is_epoch_start(self) -> bool:
        """Return whether this batch is the first of its epoch."""
        return self._position()[1] == 0

    def is_epoch_end(self) -> bool:
        """Return whether this batch is the last of its epoch."""
        return self._position()[1] == (self._epoch_len or 0) - 1

    def current_train_batch(self) -> int:
        """Return the batch that is being trained on, counted from 0 over all epochs."""
        self._position()
        assert self._current_batch is not None
        return self._current_batch

    def current_train_epoch(self) -> int:
        """Return the epoch of the batch that is being trained on, counted from 0."""
        return self._position()[0]

    def _position(self) -> tuple[int, int]:
        if self._current_batch is None or self._epoch_len is None:
            raise InternalException("there is no current batch yet: training has not begun")
        return divmod(self._current_batch, self._epoch_len)

    def _begin_batch(self, batch_idx: int) -> None:
        self._current_batch = batch_idx

    def get_trial_seed(self) -> int:
        """Return the trial's seed; outside of jobs it raises `InternalException`."""
        if self._trial_seed is None:
            raise InternalException("there is no trial seed outside of a job: choose one yourself")
        return self._trial_seed

    def get_initial_batch(self) -> int:
        """Return the first batch that this run trains on, counted from 0."""
        return self._steps_completed

    def set_profiler(self, *args: Any, **kwargs: Any) -> None:
        """Run torch's profiler during training; TensorBoard shows what it finds. `*args` and
        `**kwargs` are for `torch.profiler.profile`.
        """
        handler = torch.profiler.tensorboard_trace_handler(str(self.get_tensorboard_path()))
        self.profiler = torch.profiler.profile(*args, **{"on_trace_ready": handler, **kwargs})


class ExperimentalContext:
    """Less common settings: `context.experimental`."""

    def __init__(self, parent: TrialContext) -> None:
        self._parent = parent

    def save_in_background(self) -> None:
        """Go on with training while a checkpoint is written, from a copy in the host's memory.

        A checkpoint counts once it is complete, and exiting waits for it. An error, unless it is a
        lack of space, is raised at the next report, checkpoint or validation, on all slots.
        `on_checkpoint_upload_end()` is called then, too, and `on_checkpoint_write_end()` of a
        `PyTorchTrial` in another thread.

        A `PyTorchTrial` saves in the foreground what several slots have parts of: sharded models,
        and gradients for a later step. A `DeepSpeedTrial` does so where its engines have a
        checkpoint writer of their own; what its `save()` writes in another way than through
        wrapped engines is written at once, and their files are empty until later.
        """
        self._parent._saves_in_background = True


def alone(
    hparams: Mapping[str, Any] | None,
    exp_conf: Mapping[str, Any] | None,
    *,
    trial_seed: int | None = None,
) -> dict[str, Any]:
    """The arguments that every kind of context takes, for a trial by hand in one process."""
    return {
        "core_context": None,
        "trial_seed": trial_seed,
        "hparams": hparams,
        "slots_per_trial": 1,
        "num_gpus": torch.cuda.device_count(),
        "exp_conf": exp_conf,
        "steps_completed": 0,
        "managed_training": False,
        "distributed": DistributedContext(),
    }


def _per_slot(total: int, slots: int) -> int:
    if total < slots:
        raise InvalidExperimentException(
            f"global_batch_size ({total}) is less than the number of slots ({slots}):"
            " each slot needs at least one record"
        )
    if total % slots:
        logger.warning(
            "global_batch_size %d is not a multiple of %d slots: %d records a batch are used",
            total,
            slots,
            total // slots * slots,
        )
    return total // slots


def device_of(num_gpus: int, dist: DistributedContext) -> torch.device:
    """Return the device of a rank: a GPU of its node, by local rank, or the CPU."""
    if num_gpus == 0 or not torch.cuda.is_available():
        return torch.device("cpu")
    # A rank may see its own GPU only. A process alone stays where its program has put it.
    alone = torch.cuda.current_device() if dist.size == 1 else None
    index = dist.local_rank % torch.cuda.device_count() if alone is None else alone
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device
