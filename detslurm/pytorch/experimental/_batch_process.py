"""`torch_batch_process()`: the loop that processes a dataset once, over any number of runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, Dataset

from detslurm import core
from detslurm._base.trust import trusted
from detslurm.core import DistributedContext, DownloadMode
from detslurm.core._checkpoint_records import Outputs
from detslurm.core._collective import run_collectively
from detslurm.pytorch._init import ranks_of, trial_info
from detslurm.pytorch._reducer import Phase
from detslurm.pytorch._rng import seed_all
from detslurm.pytorch.experimental._batch_processor import (
    TorchBatchProcessor,
    TorchBatchProcessorContext,
)
from detslurm.pytorch.experimental._batches import (
    Batches,
    RankSampler,
    batch_size_of,
    length_of,
    planned,
)

_GROUP = "inference"
_REDUCED = "reduced.pkl"


def torch_batch_process(
    batch_processor_cls: type[TorchBatchProcessor],
    dataset: Dataset[Any],
    batch_size: int | None = None,
    max_batches: int | None = None,
    checkpoint_interval: int = 5,
    dataloader_kwargs: dict[str, Any] | None = None,
    distributed_context: DistributedContext | None = None,
) -> None:
    """Process a dataset in parallel, each batch once as far as its outputs are concerned.

    Batch `i` has the records from `i * batch_size` on, and the ranks take batches in turn: which
    records are in a batch never depends on the ranks. After each interval the ranks meet and commit
    the outputs so far with a checkpoint. A run that is preempted or killed goes on there, also with
    another number of ranks; later batches are processed again, and their files replaced.

    It works in a job, and by hand in one process or under a launcher; there each start is a trial
    of its own, which begins with the first batch.

    Args:
        batch_processor_cls: Your subclass of `TorchBatchProcessor`.
        dataset: A map-style dataset, the same in each run.
        batch_size: The number of records in a batch; by default that in `dataloader_kwargs`, or 1.
        max_batches: Process only this number of batches on each rank of the first run; by default
            all. A number that makes no sense is a warning, and all are processed.
        checkpoint_interval: After how many batches of each rank outputs are committed and a
            preemption is heeded; 5 by default.
        dataloader_kwargs: Further arguments of `torch.utils.data.DataLoader`, such as
            `num_workers`; none by default.
        distributed_context: The ranks; by default those that a launcher has started, or this
            process alone.

    Raises:
        ValueError: If the dataset is iterable or has no length, `batch_size` is given twice,
            `dataloader_kwargs` has `shuffle`, `sampler` or `batch_sampler`, or
            `checkpoint_interval` is not positive. Also if the trial has begun with another dataset
            length or batch size.

    Example:
        import torch
        from detslurm.pytorch.experimental import TorchBatchProcessor, torch_batch_process

        class Squares(TorchBatchProcessor):
            def __init__(self, context):
                self.context = context

            def process_batch(self, batch, batch_idx):
                with self.context.upload_path() as path:
                    torch.save(batch**2, path / f"batch_{batch_idx}.pt")

        torch_batch_process(Squares, torch.arange(100.0), batch_size=8)
    """
    if checkpoint_interval <= 0:
        raise ValueError(f"checkpoint_interval must be positive, not {checkpoint_interval}")
    options = dict(dataloader_kwargs or {})
    size = batch_size_of(batch_size, options)
    records = length_of(dataset)
    info = trial_info()
    with core.init(distributed=distributed_context or ranks_of(info, None)) as core_context:
        if info is not None:
            seed_all(info.trial.trial_seed)
        drop_last = bool(options.get("drop_last", False))
        ranks = core_context.distributed.size
        wanted = planned(records, size, max_batches, ranks, drop_last=drop_last)
        progress = _begun(core_context, wanted)
        _BatchRun(core_context, progress, batch_processor_cls, checkpoint_interval).run(
            dataset, options
        )


class RankPart(NamedTuple):
    """A rank's contribution to a commit: its new files, and its part of the metrics."""

    files: dict[str, int]
    reduced: list[Any]


@dataclass(frozen=True)
class Progress:
    """How far a trial has come."""

    batches: Batches
    outputs: str
    done: int = 0  # so many batches are committed, from the first on
    reduced: tuple[list[Any], ...] = ()  # what earlier runs gave to the metrics

    def metadata(self, trial: int | None) -> dict[str, Any]:
        """The metadata of the checkpoint."""
        return {
            "steps_completed": self.done,
            "default_output_uuid": self.outputs,
            "batches": self.batches.count,
            "batch_size": self.batches.batch_size,
            "records": self.batches.records,
            "trial_id": trial,
        }


def _begun(core_context: core.Context, wanted: Batches) -> Progress:
    """Return the progress of the trial, on all ranks: from its latest checkpoint, or none yet."""
    checkpoint, info = core_context.checkpoint, core_context.info
    latest = None if info is None else info.latest_checkpoint
    chiefs: list[Progress] = []  # the chief alone keeps what earlier runs gave to the metrics

    def decide(_: list[None]) -> Progress:
        found = None if latest is None else _committed(core_context, latest, wanted)
        progress = found or Progress(wanted, checkpoint._begin_outputs())
        checkpoint._output_files(progress.outputs).remove_unfinished()
        chiefs.append(progress)
        return replace(progress, reduced=())

    others = run_collectively(core_context.distributed, lambda: None, decide)
    return chiefs[0] if chiefs else others


def _committed(core_context: core.Context, uuid: str, wanted: Batches) -> Progress | None:
    """The progress in a checkpoint; None where it is no batch inference of this trial."""
    metadata = core_context.checkpoint.get_metadata(uuid)
    if metadata.get("trial_id") != _trial_id(core_context) or "batches" not in metadata:
        return None
    begun = Batches(metadata["records"], metadata["batch_size"], metadata["batches"])
    if (begun.records, begun.batch_size) != (wanted.records, wanted.batch_size):
        raise ValueError(
            f"this trial has begun with {begun.records} records in batches of {begun.batch_size},"
            f" and now there are {wanted.records} in batches of {wanted.batch_size}: the numbers of"
            " its batches would mean other records. Submit a new experiment"
        )
    mode = DownloadMode.NoSharedDownload
    with core_context.checkpoint.restore_path(uuid, mode) as path:
        reduced = _read_reduced(path / _REDUCED)
    return Progress(begun, metadata["default_output_uuid"], metadata["steps_completed"], reduced)


def _read_reduced(path: Path) -> tuple[list[Any], ...]:
    return tuple(pickle.loads(trusted(path).read_bytes())) if path.exists() else ()


def _trial_id(core_context: core.Context) -> int | None:
    return None if core_context.info is None else core_context.info.trial.trial_id


class _BatchRun:
    """One run: this rank's batches from the committed ones on."""

    def __init__(
        self,
        core_context: core.Context,
        progress: Progress,
        processor: type[TorchBatchProcessor],
        interval: int,
    ) -> None:
        self._core = core_context
        self._dist = core_context.distributed
        self._progress = progress
        self._interval = interval
        self._outputs = core_context.checkpoint._output_files(progress.outputs)
        self._context = TorchBatchProcessorContext(core_context, self._outputs)
        self._processor = processor(self._context)

    def run(self, dataset: Dataset[Any], options: Mapping[str, Any]) -> None:
        """Process the batches that are not committed yet."""
        batches, first, size = self._progress.batches, self._progress.done, self._dist.size
        numbers = batches.of_rank(first, self._dist.rank, size)
        loaded = iter(_loader(dataset, options, RankSampler(batches, numbers)))
        self._context._reducers.reset()
        mine = iter(numbers)
        for turn in range(1, batches.rounds(first, size) + 1):
            number = next(mine, None)
            if number is not None:  # the last turn may have less batches than ranks
                self._processor.process_batch(next(loaded), number)
            done = min(first + turn * size, batches.count)
            if turn % self._interval == 0 or done == batches.count:
                self._commit(done)
                if done < batches.count and self._core.preempt.should_preempt():
                    self._report_reduced()
                    return
        self._report_reduced()
        self._finish()

    def _commit(self, done: int) -> None:
        """Store a checkpoint by which the outputs of all batches before `done` count."""
        part = partial(self._part, self._processor.on_checkpoint_start)
        run_collectively(self._dist, part, lambda parts: self._store(done, parts))
        self._progress = replace(self._progress, done=done)

    def _finish(self) -> None:
        """Let the user's code end, and commit the files that it adds then."""

        def store(parts: list[RankPart]) -> None:
            if any(part.files for part in parts):
                self._store(self._progress.done, parts)

        run_collectively(self._dist, partial(self._part, self._processor.on_finish), store)

    def _part(self, hook: Callable[[], None]) -> RankPart:
        hook()
        reduced = self._context._reducers.contribution(Phase.VALIDATION)
        return RankPart(self._outputs.taken(), reduced)

    def _store(self, done: int, parts: list[RankPart]) -> None:
        now = replace(self._progress, done=done)
        files = {name: size for part in parts for name, size in part.files.items()}
        committing = self._core.checkpoint._committing(
            now.metadata(_trial_id(self._core)), Outputs(now.outputs, files)
        )
        with committing as path:
            if any(part.reduced for part in parts):
                reduced = [*self._progress.reduced, *(part.reduced for part in parts)]
                (path / _REDUCED).write_bytes(pickle.dumps(reduced))
        self._core.train.report_progress(done / max(now.batches.count, 1))

    def _report_reduced(self) -> None:
        """Report the metrics of all batches so far, those of earlier runs included."""
        reducers, done = self._context._reducers, self._progress.done

        def report(parts: list[list[Any]]) -> None:
            metrics = reducers.metrics(Phase.VALIDATION, [*self._progress.reduced, *parts])
            if metrics:
                self._core.train.report_metrics(_GROUP, done, metrics)

        run_collectively(self._dist, lambda: reducers.contribution(Phase.VALIDATION), report)


def _loader(
    dataset: Dataset[Any], options: Mapping[str, Any], sampler: RankSampler
) -> DataLoader[Any]:
    ours = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
    others = {name: value for name, value in options.items() if name not in ours}
    return DataLoader(dataset, batch_sampler=sampler, **others)
