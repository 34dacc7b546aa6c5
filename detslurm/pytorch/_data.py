"""Data loading that can be sharded, repeated and taken up anywhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from operator import length_hint
from typing import Any

import numpy as np
import torch
from torch.utils import data

from detslurm.pytorch._workers import (
    Numbering,
    SeededWorker,
    Worker,
    require_short_temporary_directory,
)
from detslurm.pytorch.samplers import (
    DistributedBatchSampler,
    RepeatBatchSampler,
    ReproducibleShuffleSampler,
    SkipBatchSampler,
    Source,
    mixed_seed,
)

logger = logging.getLogger("detslurm.pytorch")

TorchData = dict[str, torch.Tensor] | Sequence[torch.Tensor] | torch.Tensor
"""The usual types of a batch."""

_ARRAYS = (torch.Tensor, np.ndarray)
_COLLECTIONS = (list, tuple, dict, Mapping)  # the abstract one last: it takes long to ask

ITERABLE = (
    "pytorch.DataLoader can't shard or take up an IterableDataset. Use a map-style data set, or"
    " return a torch.utils.data.DataLoader after the context's"
    " disable_dataset_reproducibility_checks() (a PyTorchTrial's context.experimental has it);"
    " its position is then up to you"
    " (pytorch.samplers may help)."
)


class DataLoader:
    """A data set, how to draw batches from it, and how to load them; arguments as in torch.

    The torch DataLoader that does the loading is made by `get_data_loader()`, which knows the shard
    and the batch to start with. With `shuffle` the order of every epoch follows from a seed alone.

    Args:
        dataset: A map-style data set.
        batch_size: Records in a batch; 1 by default. None needs a `batch_sampler`.
        shuffle: Whether to shuffle the records, another way in every epoch; off by default.
        sampler: The records to draw; by default all in order.
        batch_sampler: The batches to draw, in place of the arguments before; by default they
            decide.
        num_workers: Processes that load batches; 0, the default, loads in this process.
        collate_fn: Makes a batch of a list of records; torch's own by default.
        pin_memory: Whether to load into pinned memory; off by default.
        drop_last: Whether to leave out the last batch if it is smaller; off by default.
        timeout: Seconds to wait for a batch of a worker; 0, the default, waits without a limit.
        worker_init_fn: Called with its number in each worker; nothing by default.
        multiprocessing_context: How workers are started; by default as the platform does.
        generator: Gives the seed of the order; torch's own by default.
        prefetch_factor: Batches that each worker loads in advance; by default as in torch.
        persistent_workers: Whether workers outlive an epoch; off by default.

    Raises:
        OSError: When batches are asked for from workers that could not send them, because the path
            of the directory for temporary files is too long.
        ValueError: For an iterable-style data set, for no batches without a `batch_sampler`, and
            for what torch refuses.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        if isinstance(dataset, data.IterableDataset):
            raise ValueError(ITERABLE)
        if batch_size is None and batch_sampler is None:
            raise ValueError("batch_size=None (no batches) needs a batch_sampler here")
        self._loading = {
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "generator": generator,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
        }
        # Torch raises now what it would refuse later.
        drawn = data.DataLoader(
            dataset,
            1 if batch_size is None else batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            **self._loading,
        )
        self.dataset = dataset
        self.batch_size, self.drop_last, self.shuffle = batch_size, drop_last, shuffle
        self.sampler, self.batch_sampler = drawn.sampler, drawn.batch_sampler
        self.num_workers, self.collate_fn = num_workers, drawn.collate_fn
        self.pin_memory, self.timeout, self.worker_init_fn = pin_memory, timeout, worker_init_fn
        self.multiprocessing_context, self.generator = multiprocessing_context, generator
        self.prefetch_factor, self.persistent_workers = prefetch_factor, persistent_workers
        self._whole: data.DataLoader | None = None

    def __len__(self) -> int:
        """Batches in one pass over all of the data set."""
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        """One pass over all of the data set; with `shuffle` in another order each time."""
        if self._whole is None:  # kept, for each new loader would begin with the same order
            self._whole = self.get_data_loader()
        return iter(self._whole)

    def get_data_loader(
        self,
        repeat: bool = False,
        skip: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
        *,
        seed: int | None = None,
    ) -> data.DataLoader:
        """Return the torch DataLoader of one shard.

        Args:
            repeat: Whether to begin again after every epoch, without an end; off by default.
            skip: How many batches of the shard to leave out, counted over epochs; 0 by default.
                They are never loaded.
            num_replicas: The number of shards; 1 by default.
            rank: The shard, from 0, which is the default.
            seed: The seed of the order; all ranks and all runs of a trial need the same. By
                default that of `generator`, or torch's own. With a seed and without `repeat` every
                iteration has the same order.
        """
        same_again = seed is not None and not repeat
        if seed is None:
            seed = (self.generator or torch.default_generator).initial_seed()

        def order() -> Source:
            return adapt_batch_sampler(self._batches(seed), repeat, skip, num_replicas, rank)

        sampler = _Anew(order) if same_again else order()
        numbering = None
        if repeat or same_again:
            batches = sys.maxsize if repeat else length_hint(sampler, sys.maxsize)
            numbering = Numbering(seed, num_replicas * skip + rank, num_replicas, batches)
        loading = self._loading | self._worker_functions(numbering)
        if same_again:
            # Iterators draw a number from it; where workers persist, the first one only.
            loading["generator"] = torch.Generator()
        return data.DataLoader(self.dataset, batch_sampler=sampler, **loading)

    def _worker_functions(self, numbering: Numbering | None) -> dict[str, Any]:
        if not self.num_workers:
            return {}
        require_short_temporary_directory()
        if numbering is None:
            return {"worker_init_fn": Worker(self.worker_init_fn).start}
        worker = SeededWorker(self.worker_init_fn, self.collate_fn, self.num_workers, numbering)
        return {"worker_init_fn": worker.start, "collate_fn": worker.collate}

    def _batches(self, seed: int) -> Source:
        if not self.shuffle:
            return _seeded(self.batch_sampler, seed)
        order = ReproducibleShuffleSampler(range(len(self.dataset)), seed)
        shuffled: Source = data.BatchSampler(order, self.batch_size, self.drop_last)
        return shuffled


class _Anew:
    """The same batches in every iteration: draws in one don't change the next."""

    def __init__(self, make: Callable[[], Source]) -> None:
        self._make = make

    def __len__(self) -> int:
        return len(self._make())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make())


_RANDOM = (data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler)


def _seeded(batches: Any, seed: int) -> Source:
    """The batch sampler; torch's random ones draw from a generator of their own, or a copy of it.

    Left alone they draw from the numbers that training uses, too, or go on where another iteration
    has stopped: no order to come back to.
    """
    given: Source = batches
    if type(batches) is not data.BatchSampler:
        return given
    if type(batches.sampler) not in _RANDOM:
        return given
    order, own = copy(batches.sampler), torch.Generator()
    if order.generator is None:
        own.manual_seed(mixed_seed(seed))
    else:
        own.set_state(order.generator.get_state())
    order.generator = own
    seeded: Source = data.BatchSampler(order, batches.batch_size, batches.drop_last)
    return seeded


def adapt_batch_sampler(
    batch_sampler: Source, repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
) -> Source:
    """Repeat, then shard, then skip the batches of any `batch_sampler`; return the sampler of the
    shard's batches. Arguments as in `DataLoader.get_data_loader`.

    Raises:
        ValueError: If there is no such shard, or `skip` is negative.
    """
    if repeat:
        batch_sampler = RepeatBatchSampler(batch_sampler)
    if num_replicas != 1 or rank != 0:
        batch_sampler = DistributedBatchSampler(batch_sampler, num_replicas, rank)
    if skip:
        batch_sampler = SkipBatchSampler(batch_sampler, skip)
    return batch_sampler


def data_length(data: Any) -> int:
    """Return the number of records in a batch: the first dimension of its first tensor or array.
    `data` is one, or a dict, list or tuple of them; all else raises `TypeError`, and `ValueError`
    if there is none in it.
    """
    first = _first_array(data)
    if first is not None:
        return len(first)
    if isinstance(data, _COLLECTIONS):
        raise ValueError("there is no tensor or array in this batch: override get_batch_length()")
    raise TypeError(
        f"Data of incorrect type: {type(data).__name__}. A batch is a tensor, an array, or a"
        " dict, list or tuple of them; for others override get_batch_length()."
    )


def _first_array(batch: Any) -> Any:
    if isinstance(batch, _ARRAYS):
        return batch
    if not isinstance(batch, _COLLECTIONS):
        return None
    for part in batch if isinstance(batch, (list, tuple)) else batch.values():
        if (found := _first_array(part)) is not None:
            return found
    return None


def to_device(data: Any, device: Any, warned_types: set[type] | None = None) -> Any:
    """Return data with every tensor and array in it moved to a device.

    Objects with a `to()` of their own move themselves. Anything else stays, with one warning for
    each type.

    Args:
        data: Tensors and arrays, also inside of dicts, lists, tuples and named tuples.
        device: The device, as torch takes it.
        warned_types: Types for which no warning is needed; it grows. By default one set for the
            whole process.
    """
    if isinstance(data, torch.Tensor):
        if data.device == device:
            return data
        # A pinned tensor is copied while the host goes on. On the way back the host has to wait.
        return data.to(device, non_blocking=data.is_cpu)
    if isinstance(data, list):
        return [to_device(item, device, warned_types) for item in data]
    if isinstance(data, np.ndarray | np.generic) and data.dtype.kind in "biufc":
        return torch.as_tensor(data).to(device)
    if callable(getattr(data, "to", None)):
        return data.to(device)
    if isinstance(data, tuple):
        moved = (to_device(item, device, warned_types) for item in data)
        return type(data)(*moved) if hasattr(data, "_fields") else tuple(moved)
    if isinstance(data, Mapping):
        return {key: to_device(value, device, warned_types) for key, value in data.items()}
    _warn_once(type(data), _WARNED if warned_types is None else warned_types)
    return data


_WARNED: set[type] = set()


def _warn_once(kind: type, warned: set[type]) -> None:
    if kind not in warned:
        warned.add(kind)
        logger.warning("data of type %s is not moved to the device", kind.__name__)
