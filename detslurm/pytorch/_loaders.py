"""From what a trial builds to what the loop draws batches from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from detslurm.core import DistributedContext
from detslurm.pytorch._data import DataLoader
from detslurm.pytorch._driver import Shard

ENDLESS = sys.maxsize
"""The length of an epoch of an iterable data set."""

_NOT_OURS = (
    "{method}() must return a detslurm.pytorch.DataLoader, not {kind}: it shards the data, shuffles"
    " reproducibly and resumes in the middle of an epoch. To take care of that yourself, call"
    " {call} in the trial's __init__ and return any iterable of batches."
)


def checked(loader: Any, method: str, reproducible: bool, call: str) -> Any:
    """The loader. Raises `RuntimeError` if it is of the wrong kind; `call` allows it."""
    if isinstance(loader, DataLoader):
        return loader
    kind = type(loader).__name__
    if reproducible:
        raise RuntimeError(_NOT_OURS.format(method=method, kind=kind, call=call))
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise RuntimeError(f"{method}() must return an iterable of batches, not {kind}")
    return loader


def length_of(loader: Any) -> int:
    """How many batches a validation loader has. Raises `TypeError` where it has no length."""
    try:
        return len(loader)
    except TypeError as err:
        raise TypeError(
            "build_validation_data_loader() must return a loader that has a length: slots"
            f" evaluate equally often ({err})"
        ) from err


def seed_of(loader: Any, dist: DistributedContext) -> int:
    """The seed of the order of batches: the chief's, for ranks must agree on their shards."""
    generator = getattr(loader, "generator", None)
    if not isinstance(generator, torch.Generator):  # loaders of other libraries may have any
        generator = torch.default_generator
    own = generator.initial_seed()
    return int(dist.broadcast(own))


def training_batches(
    loader: Any, shard: Shard, skip: int, seed: int
) -> tuple[Iterator[Any], int | None]:
    """Batches of this rank without end, from number `skip` on, and how many an epoch has; None for
    an epoch without end.

    A loader of another kind than ours begins at its own beginning.
    """
    if not isinstance(loader, DataLoader):
        return _over_and_over(loader), _length(loader)
    own = loader.get_data_loader(
        repeat=True, skip=skip, num_replicas=shard.size, rank=shard.rank, seed=seed
    )
    return iter(own), _length(own)


def validation_batches(loader: Any, shard: Shard, *, sharded: bool, seed: int) -> Any:
    """Something to iterate over once a validation: this rank's batches, or all of them.

    Those of ours come in the same order each time, however many validations there were.
    """
    if not isinstance(loader, DataLoader):
        return loader
    if not sharded:
        return loader.get_data_loader(seed=seed)
    return loader.get_data_loader(num_replicas=shard.size, rank=shard.rank, seed=seed)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _over_and_over(loader: Any) -> Iterator[Any]:
    given = False
    while True:
        empty = True
        for batch in loader:
            given, empty = True, False
            yield batch
        if empty and given:
            raise ValueError(
                "the training data loader gives no batches a second time: return one that can be"
                " gone through again, such as a list or an object with __iter__(), no generator"
            )
        if empty:
            raise ValueError("the training data loader gave no batches")
