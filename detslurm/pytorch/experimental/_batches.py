"""The records of each batch, and the rank that processes it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, IterableDataset, Sampler

logger = logging.getLogger("detslurm.pytorch")

_OURS = ("shuffle", "sampler", "batch_sampler")


@dataclass(frozen=True)
class Batches:
    """The batches of a dataset, which don't depend on the number of ranks."""

    records: int  # of all of the dataset
    batch_size: int
    count: int  # so many are processed, from the first on

    def of_rank(self, first: int, rank: int, size: int) -> range:
        """The numbers of a rank's batches, if batch `first` is the next: dealt in turn."""
        return range(first + rank, self.count, size)

    def rounds(self, first: int, size: int) -> int:
        """How often each rank takes its turn."""
        return -(-(self.count - first) // size)

    def indices(self, number: int) -> list[int]:
        """The records of a batch."""
        begin = number * self.batch_size
        return list(range(begin, min(begin + self.batch_size, self.records)))


class RankSampler(Sampler[list[int]]):  # type: ignore[misc]
    """The records of each batch of one rank."""

    def __init__(self, batches: Batches, numbers: range) -> None:
        self._batches, self._numbers = batches, numbers

    def __iter__(self) -> Iterator[list[int]]:
        return map(self._batches.indices, self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def batch_size_of(batch_size: int | None, options: Mapping[str, Any]) -> int:
    """The batch size of the arguments. Raises `ValueError` as `torch_batch_process` does."""
    if batch_size is not None and options.get("batch_size") is not None:
        raise ValueError("batch_size is given twice: as an argument and in dataloader_kwargs")
    for name in _OURS:
        if options.get(name):
            raise ValueError(
                f"dataloader_kwargs must not have {name!r}: torch_batch_process deals the batches"
                " in the dataset's order, so that it can go on after a preemption"
            )
    found = batch_size if batch_size is not None else options.get("batch_size")
    found = 1 if found is None else found
    if not isinstance(found, int) or found < 1:
        raise ValueError(f"batch_size must be a positive integer, not {found!r}")
    return found


def length_of(dataset: Dataset[Any]) -> int:
    """How many records a dataset has. Raises `ValueError` if it is not map-style."""
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            "torch_batch_process needs a map-style dataset (__getitem__ and __len__): an"
            " IterableDataset can't go on at a record. Write its records to files first, or use"
            " core.shards() over its parts"
        )
    if not hasattr(dataset, "__len__"):
        kind = type(dataset).__name__
        raise ValueError(f"torch_batch_process needs a dataset with __len__, which {kind} lacks")
    return len(dataset)


def planned(
    records: int, batch_size: int, max_batches: int | None, ranks: int, *, drop_last: bool
) -> Batches:
    """The batches to process: all, or `max_batches` on each rank."""
    whole = records // batch_size if drop_last else -(-records // batch_size)
    if max_batches is None:
        return Batches(records, batch_size, whole)
    if not 0 < max_batches <= -(-whole // ranks):
        logger.warning(
            "max_batches is %d, but each rank has %d batches: the whole dataset is processed once",
            max_batches,
            -(-whole // ranks),
        )
        return Batches(records, batch_size, whole)
    return Batches(records, batch_size, min(whole, max_batches * ranks))
