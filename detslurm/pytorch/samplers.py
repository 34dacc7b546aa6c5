"""Samplers to build with: repeat, shard, skip and shuffle any sampler, reproducibly.

Shuffle first, then repeat, then shard, then skip; `pytorch.DataLoader` does it in this order.
Indices are cheap, data is not: what a sampler leaves out is never loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import torch
from numpy.random import SeedSequence
from torch.utils.data import BatchSampler, Sampler, SequentialSampler

__all__ = [
    "DistributedBatchSampler",
    "DistributedSampler",
    "RepeatBatchSampler",
    "RepeatSampler",
    "ReproducibleShuffleBatchSampler",
    "ReproducibleShuffleSampler",
    "SkipBatchSampler",
    "SkipSampler",
]


class Source(Protocol):
    """The base of a sampler: items to iterate over, a known number of them."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...


class _Repeat:
    """Starts over whenever the source ends."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        return self._starting_at(0)

    def _starting_at(self, position: int) -> Iterator[Any]:
        # A generator: torch makes iterators that it never uses, and those must not jump.
        if jump := _epoch_jump(self._source):
            epochs, position = divmod(position, max(len(self._source), 1))
            jump(epochs)
        yield from islice(self._endless(), position, None)

    def _endless(self) -> Iterator[Any]:
        while True:
            empty = True
            for item in self._source:
                empty = False
                yield item
            if empty:
                raise ValueError("nothing to repeat: the sampler (the data set?) is empty")


class _Shard:
    """Every `num_workers`-th item of the source, beginning with number `rank`."""

    def __init__(self, source: Source, num_workers: int, rank: int) -> None:
        if not 0 <= rank < num_workers:
            raise ValueError(f"rank {rank} is not one of {num_workers}")
        self._source, self._num_workers, self._rank = source, num_workers, rank

    def __len__(self) -> int:
        return len(range(self._rank, len(self._source), self._num_workers))

    def __iter__(self) -> Iterator[Any]:
        return self._starting_at(0)

    def _starting_at(self, position: int) -> Iterator[Any]:
        begun = _starting_at(self._source, self._rank + position * self._num_workers)
        return islice(begun, 0, None, self._num_workers)


class _Skip:
    """Leaves out the first `skip` items of the source, in every iteration."""

    def __init__(self, source: Source, skip: int) -> None:
        if skip < 0:
            raise ValueError(f"can't skip {skip} items")
        self._source, self._skip = source, skip

    def __len__(self) -> int:
        # The source repeats, and this is the length of its epochs.
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        return _starting_at(self._source, self._skip)


class _Shuffle:
    """Another permutation of the source in every iteration, all of them given by the seed."""

    def __init__(self, source: Source, seed: int) -> None:
        self._source, self._seed, self._epoch = source, seed, 0

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(mixed_seed(self._seed, self._epoch))
        self._epoch += 1
        items = self._source if isinstance(self._source, Sequence) else list(self._source)
        order = torch.randperm(len(items), generator=generator).tolist()
        # An item that is its own index, as most are, need not be looked up between two batches.
        own = isinstance(items, range) and items == range(len(items))
        yield from order if own else map(items.__getitem__, order)

    def _jump(self, epochs: int) -> None:
        self._epoch += epochs


def mixed_seed(*numbers: int) -> int:
    """A seed that depends on all the numbers, and has nothing to do with its neighbours' seeds."""
    state = SeedSequence([number % 2**64 for number in numbers]).generate_state(2)
    return int(state[0]) << 32 | int(state[1])


def _starting_at(source: Iterable[Any], position: int) -> Iterator[Any]:
    starting_at = getattr(source, "_starting_at", None)
    if starting_at is None:
        return islice(iter(source), position, None)
    begun: Iterator[Any] = starting_at(position)
    return begun


def _epoch_jump(source: Any) -> Callable[[int], None] | None:
    """How to pass over whole iterations of a sampler in no time; None where that isn't known."""
    if isinstance(source, _Shuffle):
        inner = _epoch_jump(source._source)
        return None if inner is None else _both(inner, source._jump)
    if type(source) is BatchSampler:
        return _epoch_jump(source.sampler)
    if type(source) is SequentialSampler or isinstance(source, Sequence):
        return lambda epochs: None
    return None


def _both(first: Callable[[int], None], second: Callable[[int], None]) -> Callable[[int], None]:
    def jump(epochs: int) -> None:
        first(epochs)
        second(epochs)

    return jump


class RepeatSampler(_Repeat, Sampler):  # type: ignore[misc]
    """The records of `sampler` again and again, without an end; its length is that of one pass."""

    def __init__(self, sampler: Source) -> None:
        _Repeat.__init__(self, sampler)


class RepeatBatchSampler(_Repeat, BatchSampler):  # type: ignore[misc]
    """The batches of `batch_sampler` again and again, without an end; its length is that of one
    pass.
    """

    def __init__(self, batch_sampler: Source) -> None:
        _Repeat.__init__(self, batch_sampler)


class DistributedSampler(_Shard, Sampler):  # type: ignore[misc]
    """The records of one shard of `sampler`, dealt round robin: of `num_workers` shards number
    `rank`, from 0. Another number raises `ValueError`.

    Unlike torch's class of this name it neither shuffles nor pads, and takes any sampler.
    """

    def __init__(self, sampler: Source, num_workers: int, rank: int) -> None:
        _Shard.__init__(self, sampler, num_workers, rank)


class DistributedBatchSampler(_Shard, BatchSampler):  # type: ignore[misc]
    """The batches of one shard of `batch_sampler`, whole and dealt round robin: of `num_workers`
    shards number `rank`, from 0. Another number raises `ValueError`.

    Unless the batches are repeated, low ranks have one batch more when the number of batches can't
    be divided evenly.
    """

    def __init__(self, batch_sampler: Source, num_workers: int, rank: int) -> None:
        _Shard.__init__(self, batch_sampler, num_workers, rank)


class SkipSampler(_Skip, Sampler):  # type: ignore[misc]
    """The records of `sampler` without the first `skip`; its length is that of the sampler. A
    negative `skip` raises `ValueError`.

    To go on in the middle of an epoch prefer `SkipBatchSampler`: it is right for batches of any
    size. Skip after repeating, or every epoch loses its beginning.
    """

    def __init__(self, sampler: Source, skip: int) -> None:
        _Skip.__init__(self, sampler, skip)


class SkipBatchSampler(_Skip, BatchSampler):  # type: ignore[misc]
    """The batches of `batch_sampler` without the first `skip`; its length is that of the sampler. A
    negative `skip` raises `ValueError`.

    Skip after repeating, or every epoch loses its beginning.
    """

    def __init__(self, batch_sampler: Source, skip: int) -> None:
        _Skip.__init__(self, batch_sampler, skip)


class ReproducibleShuffleSampler(_Shuffle, Sampler):  # type: ignore[misc]
    """The records of `sampler` in an order that `seed` and the number of the iteration determine.

    The best way to shuffle. All of `sampler` is read at the start of an iteration: repeat after
    shuffling, never before.
    """

    def __init__(self, sampler: Source, seed: int) -> None:
        _Shuffle.__init__(self, sampler, seed)


class ReproducibleShuffleBatchSampler(_Shuffle, BatchSampler):  # type: ignore[misc]
    """The batches of `batch_sampler`, whole, in an order that `seed` and the iteration determine.

    For data that must stay together; otherwise shuffle records. Repeat after shuffling.
    """

    def __init__(self, batch_sampler: Source, seed: int) -> None:
        _Shuffle.__init__(self, batch_sampler, seed)
