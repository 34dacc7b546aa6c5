"""Random augmentation in worker processes that doesn't depend on how often training stopped."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from detslurm.pytorch.samplers import mixed_seed


class Numbering(NamedTuple):
    """The trial's seed, the number of the first batch among all ranks, and the distance to the
    next one of the same rank."""

    seed: int
    first: int
    stride: int


class WorkerSeeds:
    """Seeds a worker's random numbers anew for every batch, by the number of the batch.

    Workers take batches in turns, so each knows the numbers of its own. `start` is meant to be the
    `worker_init_fn` and `collate`, which is called when a batch has been read, the `collate_fn`.
    """

    def __init__(
        self,
        numbering: tuple[int, int, int],
        num_workers: int,
        collate_fn: Callable[[list[Any]], Any],
        worker_init_fn: Callable[[int], None] | None,
    ) -> None:
        self._numbering = Numbering(*numbering)
        self._num_workers = num_workers
        self._collate_fn, self._worker_init_fn = collate_fn, worker_init_fn
        self._position = 0

    def start(self, worker: int) -> None:
        """Run the user's own function, then get ready for this worker's first batch."""
        if self._worker_init_fn is not None:
            self._worker_init_fn(worker)
        self._position = worker
        self._seed()

    def collate(self, records: list[Any]) -> Any:
        """Make the batch, then get ready for the next one."""
        batch = self._collate_fn(records)
        self._position += self._num_workers
        self._seed()
        return batch

    def _seed(self) -> None:
        seed, first, stride = self._numbering
        mixed = mixed_seed(seed, first + self._position * stride)
        torch.manual_seed(mixed)
        random.seed(mixed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(mixed % 2**32)
