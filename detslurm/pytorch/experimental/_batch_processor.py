"""The code that processes batches, and its view of its surroundings."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch

from detslurm._base.node_files import make_directory
from detslurm.core import Context
from detslurm.core._output_files import OutputFiles
from detslurm.pytorch._base_context import device_of
from detslurm.pytorch._data import to_device
from detslurm.pytorch._reducer import MetricReducer, Reducers

Model = TypeVar("Model", bound=torch.nn.Module)


class TorchBatchProcessorContext:
    """The surroundings of a `TorchBatchProcessor`. `torch_batch_process()` makes it.

    Args:
        core_context: The open context of the Core API.
        outputs: This rank's files in the trial's outputs.

    Attributes:
        device: The device of this rank: a GPU, or the CPU where torch sees none.
    """

    def __init__(self, core_context: Context, outputs: OutputFiles) -> None:
        dist = core_context.distributed
        self.device = device_of(torch.cuda.device_count(), dist)
        self._core = core_context
        self._outputs = outputs
        self._reducers = Reducers(sends=dist.size > 1)
        self._warned_types: set[type] = set()
        self._scratch: Path | None = None

    def get_hparams(self) -> dict[str, Any]:
        """Return the trial's hyperparameters by name; empty outside of jobs."""
        info = self._core.info
        return {} if info is None else dict(info.trial.hparams)

    def to_device(self, data: Any) -> Any:
        """Return `data` on this rank's device: tensors and arrays, alone or in containers."""
        return to_device(data, self.device, self._warned_types)

    def prepare_model_for_inference(self, model: Model) -> Model:
        """Return `model`, moved in place to this rank's device, in evaluation mode."""
        model.eval()
        model.to(self.device)
        return model

    def get_tensorboard_path(self) -> Path:
        """Return a directory for TensorBoard files, which are kept with the trial; a temporary
        directory where nothing is recorded."""
        with suppress(ValueError):
            return self._core.train.get_tensorboard_path()
        self._scratch = self._scratch or make_directory("tensorboard")
        return self._scratch

    @contextmanager
    def upload_path(self) -> Iterator[Path]:
        """Yield an empty directory, whose files join the trial's outputs when the block ends.

        They lie in the checkpoint storage, under `default_output_uuid/rank_N`. A file replaces the
        file of the same name, so name files by `batch_idx`: a batch that is processed again then
        replaces its file. The files count as soon as the interval's checkpoint is stored.

        Example:
            def process_batch(self, batch, batch_idx):
                with self.context.upload_path() as path:
                    torch.save(self.model(batch), path / f"batch_{batch_idx}.pt")
        """
        with self._outputs.added() as path:
            yield path

    def report_metrics(self, group: str, steps_completed: int, metrics: dict[str, Any]) -> None:
        """Report `metrics`, values by name, of any `group`, such as "inference", as
        `core.train.report_metrics` does: once for each metric and step `steps_completed`.
        """
        self._core.train.report_metrics(group, steps_completed, metrics)

    def report_task_using_checkpoint(self, ckpt: Any) -> None:
        """Record that this trial uses `ckpt`, a result of `client.get_checkpoint()`:
        `Checkpoint.get_metrics()` then has the metrics that this trial reports.
        """
        self._core.experimental.report_task_using_checkpoint(ckpt)

    def report_task_using_model_version(self, version: Any) -> None:
        """Record that this trial uses `version`, a result of `Model.get_version()`:
        `ModelVersion.get_metrics()` then has the metrics that this trial reports.
        """
        self._core.experimental.report_task_using_model_version(version)

    def get_distributed_rank(self) -> int:
        """Return the number of this process, from 0."""
        return self._core.distributed.rank

    def get_distributed_size(self) -> int:
        """Return the number of processes."""
        return self._core.distributed.size

    def wrap_reducer(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer:
        """Register a metric over all batches and ranks, and return its reducer. It is reported at
        the end, and at a preemption, in the group "inference".

        Contributions from before a preemption are kept with the checkpoint and count, too, so
        `per_slot_reduce()` must not change the reducer: it is called at each interval.

        Args:
            reducer: A `MetricReducer`, or a function of the list of all values. A function's values
                come from calling `update(value)` on the result; those of several runs follow in no
                particular order.
            name: The name of the metric. By default the reducer gives a dict of metrics.
            for_training: Without effect, as nothing is trained; on by default.
            for_validation: Whether the metric is reported; on by default.
        """
        return self._reducers.wrap(reducer, name, for_training, for_validation)


class TorchBatchProcessor(abc.ABC):
    """Write a subclass for `torch_batch_process()`, which creates one object of it on each rank.

    Args:
        context: The surroundings; the base class keeps nothing of it.
    """

    @abc.abstractmethod
    def __init__(self, context: TorchBatchProcessorContext) -> None: ...

    @abc.abstractmethod
    def process_batch(self, batch: Any, batch_idx: int) -> None:
        """Process one batch.

        Args:
            batch: The batch, as the DataLoader's `collate_fn` makes it.
            batch_idx: The number of the batch in the whole dataset, from 0. It names the same
                records on any number of ranks: those from `batch_idx * batch_size` on.
        """

    def on_checkpoint_start(self) -> None:  # noqa: B027
        """Write results that are still in memory: the batches so far are about to be committed."""

    def on_finish(self) -> None:  # noqa: B027
        """Do what comes last: all batches of all ranks are committed. Files that you add to
        `upload_path()` here are committed when all ranks have returned."""
