"""Samplers: whatever the sizes, shards add up to the whole and a resumed stream is the tail."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, zip_longest
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from detslurm.core import DistributedContext
from detslurm.pytorch import samplers
from detslurm.pytorch._data import DataLoader, adapt_batch_sampler
from detslurm.pytorch._driver import Shard
from detslurm.pytorch._loaders import seed_of, training_batches, validation_batches
from detslurm.pytorch._model_driver import ModelDriver
from tests.core.ranks import on_ranks

Batches = list[list[int]]
NOTHING: list[int] = []


def batches(loader: DataLoader, count: int | None, **kwargs: Any) -> Batches:
    """The indices of the first batches that a loader would load."""
    found = loader.get_data_loader(seed=7, **kwargs)
    return list(islice(found.batch_sampler, count))


def interleaved(shards: list[Batches]) -> Batches:
    """Batches in the order in which they were dealt."""
    return [b for turn in zip_longest(*shards) for b in turn if b is not None]


loaders = st.builds(
    DataLoader,
    st.integers(1, 40).map(range),
    batch_size=st.integers(1, 9),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)


@given(loaders, st.integers(1, 5))
@settings(deadline=None)
def test_shards_are_the_whole(loader: DataLoader, ranks: int) -> None:
    """Dealt back in turn, one pass of all shards is the pass of a single rank."""
    shards = [batches(loader, None, num_replicas=ranks, rank=r) for r in range(ranks)]
    assert interleaved(shards) == batches(loader, None)
    assert [len(shard) for shard in shards] == sorted((len(s) for s in shards), reverse=True)
    assert len(shards[0]) - len(shards[-1]) <= 1


@given(loaders, st.integers(1, 5))
@settings(deadline=None)
def test_lengths_are_true(loader: DataLoader, ranks: int) -> None:
    """The length that every rank is told is the number of batches of one pass."""
    for rank in range(ranks):
        shard = loader.get_data_loader(num_replicas=ranks, rank=rank)
        assert len(shard) == len(list(shard.batch_sampler))
        again = loader.get_data_loader(repeat=True, skip=3, num_replicas=ranks, rank=rank)
        assert len(again) == len(shard)


@given(loaders.filter(len), st.integers(1, 5), st.integers(0, 60))
@settings(deadline=None)
def test_resumed_is_the_tail(loader: DataLoader, ranks: int, skip: int) -> None:
    """Skipping batches of the endless stream of a shard leaves its rest, over all epochs."""
    for rank in range(ranks):
        shard = {"repeat": True, "num_replicas": ranks, "rank": rank}
        resumed = batches(loader, 20, skip=skip, **shard)
        assert resumed == batches(loader, skip + 20, **shard)[skip:]


@given(loaders.filter(len), st.integers(1, 5), st.integers(1, 5), st.integers(0, 30))
@settings(deadline=None)
def test_endless_shards_are_the_whole(loader: DataLoader, a: int, b: int, skip: int) -> None:
    """Endless streams add up, too; so does going on with another number of ranks."""
    whole = batches(loader, (skip + 6) * a, repeat=True)
    shards = [batches(loader, skip + 6, repeat=True, num_replicas=a, rank=r) for r in range(a)]
    assert interleaved(shards) == whole
    if skip * a % b == 0:
        rest = [
            batches(loader, 4, repeat=True, skip=skip * a // b, num_replicas=b, rank=r)
            for r in range(b)
        ]
        assert interleaved(rest)[:6] == whole[skip * a :][: min(6, 4 * b)]


@given(loaders.filter(len), st.integers(1, 4))
@settings(deadline=None)
def test_every_epoch_is_all_of_it(loader: DataLoader, epochs: int) -> None:
    """Each repetition has every record once (but for what `drop_last` drops)."""
    stream = batches(loader, epochs * len(loader), repeat=True)
    for epoch in range(epochs):
        passed = stream[epoch * len(loader) : (epoch + 1) * len(loader)]
        records = [record for batch in passed for record in batch]
        kept = len(loader) * (loader.batch_size or 1) if loader.drop_last else len(loader.dataset)
        assert len(set(records)) == len(records) == kept


def test_epochs_are_shuffled_anew() -> None:
    """The order differs from epoch to epoch and from seed to seed, and is the same again."""
    order = samplers.ReproducibleShuffleSampler(range(50), seed=1)
    first, second = list(order), list(order)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    again = samplers.ReproducibleShuffleSampler(range(50), seed=1)
    assert [list(again), list(again)] == [first, second]
    other = list(samplers.ReproducibleShuffleSampler(range(50), seed=2))
    assert other not in (first, second)  # neighbours have nothing in common


class Elementwise(list[int]):
    """Compares item by item, as arrays do; its truth is then nobody's to ask."""

    def __eq__(self, other: object) -> Any:
        return torch.tensor(self) == torch.tensor(list(other))  # type: ignore[call-overload]


@pytest.mark.parametrize("items", [range(10, 60), Elementwise(range(50))])
def test_items_are_found_by_their_index(items: Sequence[int]) -> None:
    """Whatever they are, they come in the order of their indices."""
    order = list(samplers.ReproducibleShuffleSampler(range(50), seed=1))
    found = list(samplers.ReproducibleShuffleSampler(items, seed=1))
    assert found == [items[index] for index in order]


def test_whole_batches_are_shuffled() -> None:
    """Shuffling batches keeps each of them together."""
    plain = BatchSampler(SequentialSampler(range(20)), 3, False)
    shuffled = samplers.ReproducibleShuffleBatchSampler(plain, seed=0)
    once, twice = list(shuffled), list(shuffled)
    assert sorted(once) == sorted(twice) == sorted(plain)
    assert len({str(order) for order in (once, twice, list(plain))}) == 3


def test_samplers_of_records() -> None:
    """The samplers of records do to records what the others do to batches."""
    assert list(islice(samplers.RepeatSampler(range(3)), 7)) == [0, 1, 2, 0, 1, 2, 0]
    assert list(samplers.DistributedSampler(range(7), 3, 1)) == [1, 4]
    assert list(samplers.SkipSampler(range(5), 3)) == [3, 4]
    lengths = [
        len(samplers.RepeatSampler(range(3))),
        len(samplers.DistributedSampler(range(7), 3, 0)),
        len(samplers.SkipSampler(range(5), 3)),
        len(samplers.ReproducibleShuffleSampler(range(9), 0)),
    ]
    assert lengths == [3, 3, 5, 9]


class Moody:
    """A batch sampler that gives another number of batches in every pass."""

    def __init__(self) -> None:
        self.passes = 0

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        self.passes += 1
        return iter([[self.passes, number] for number in range(self.passes)])


def test_batch_samplers_of_any_kind() -> None:
    """A user's own batch sampler is repeated, sharded and skipped by what it really gives."""
    whole = list(islice(adapt_batch_sampler(Moody(), repeat=True), 10))
    assert whole == [[p, n] for p in range(1, 5) for n in range(p)]
    parts = [
        list(islice(adapt_batch_sampler(Moody(), True, 2, num_replicas=2, rank=rank), 3))
        for rank in range(2)
    ]
    assert interleaved(parts) == whole[4:]


def test_a_sampler_with_a_state_of_its_own() -> None:
    """Passing over epochs takes a sampler that nobody knows through each of them."""

    def loader() -> DataLoader:
        order = SubsetRandomSampler(range(10), torch.Generator().manual_seed(3))
        return DataLoader(range(10), batch_size=4, sampler=order)

    assert batches(loader(), 9, repeat=True)[7:] == batches(loader(), 2, repeat=True, skip=7)

    def shuffled(skip: int) -> list[int]:
        order = RandomSampler(range(10), generator=torch.Generator().manual_seed(3))
        twice = samplers.ReproducibleShuffleSampler(order, seed=1)
        return list(islice(adapt_batch_sampler(twice, repeat=True, skip=skip), 40 - skip))

    assert shuffled(0)[25:] == shuffled(25)


def test_a_generator_of_the_samplers_own_counts() -> None:
    """The trial's seed has no say in it."""

    def order() -> RandomSampler:
        return RandomSampler(range(10), generator=torch.Generator().manual_seed(3))

    loader = DataLoader(range(10), batch_size=10, sampler=order())
    assert batches(loader, 1) == [list(order())]


def test_what_ranks_agree_on() -> None:
    """The chief's seed and the chief's epochs, whatever each rank has seeded by itself."""

    def ranks_batches(dist: DistributedContext) -> Any:
        generator = torch.Generator().manual_seed(dist.rank)
        loader = DataLoader(range(10), batch_size=2, shuffle=True, generator=generator)
        seed = seed_of(loader, dist)
        shard = Shard(dist.rank, dist.size)
        training, own = training_batches(loader, shard, 0, seed)
        length = ModelDriver.epoch_len(dist.allgather(own))
        validation = validation_batches(loader, shard, sharded=True, seed=seed)
        first = [next(training).tolist() for _ in range(3 - dist.rank)]
        return length, first, [batch.tolist() for batch in validation]

    found: list[Any] = on_ranks(2, ranks_batches)
    (length, *own), (same, *others) = found
    assert length == same == 3
    for mine, theirs in zip(own, others, strict=True):
        assert sorted(record for batch in mine + theirs for record in batch) == list(range(10))


RANDOM = {
    "random": lambda: RandomSampler(range(11)),
    "subset": lambda: SubsetRandomSampler(range(11)),
    "weighted": lambda: WeightedRandomSampler([1.0] * 11, 11),
}


@pytest.mark.parametrize("kind", RANDOM)
def test_torchs_random_samplers_need_no_generator(kind: str) -> None:
    """They give the same shards and the same tail again, whatever random numbers training draws."""

    def shard(rank: int, skip: int, as_batches: bool) -> Batches:
        torch.rand(3)
        order = RANDOM[kind]()
        if as_batches:
            loader = DataLoader(range(11), batch_sampler=BatchSampler(order, 2, False))
        else:
            loader = DataLoader(range(11), batch_size=2, sampler=order)
        return batches(loader, 8, repeat=True, skip=skip, num_replicas=2, rank=rank)

    for as_batches in (True, False):
        whole = interleaved([shard(rank, 0, as_batches) for rank in range(2)])
        if kind != "weighted":
            assert sorted(r for batch in whole[:6] for r in batch) == list(range(11))
        assert whole[:6] != whole[6:12]
        tail = interleaved([shard(rank, 3, as_batches) for rank in range(2)])
        assert tail[:10] == whole[6:]


def test_skipping_epochs_costs_nothing() -> None:
    """Going on after a million epochs is immediate: nobody draws their orders."""
    loader = DataLoader(range(1000), batch_size=10, shuffle=True)
    (batch,) = batches(loader, 1, repeat=True, skip=10**8 + 5)
    assert len(batch) == 10


def test_repeating_nothing() -> None:
    """An empty sampler is an error rather than an endless loop."""
    with pytest.raises(ValueError, match="nothing to repeat"):
        next(iter(samplers.RepeatBatchSampler([])))


@pytest.mark.parametrize("place", [(2, 2), (-1, 2), (0, 0)])
def test_ranks_that_are_none(place: tuple[int, int]) -> None:
    """A rank must be one of the replicas."""
    rank, ranks = place
    with pytest.raises(ValueError, match="rank"):
        DataLoader(range(4)).get_data_loader(num_replicas=ranks, rank=rank)
    with pytest.raises(ValueError, match="skip"):
        samplers.SkipSampler(range(3), -1)
