"""The work of a data loader's processes besides loading."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import util
from typing import Any, NamedTuple

import torch
from torch import multiprocessing

from detslurm._base.flag import PreemptFlag
from detslurm._base.quantities import counted
from detslurm.pytorch.samplers import mixed_seed

_LONGEST_SOCKET = 107  # bytes, on Linux: unix(7)


def require_short_temporary_directory() -> None:
    """Raise `OSError` where the paths of workers' sockets would be longer than they may be.

    Workers hand tensors over through sockets in TMPDIR. A worker that can't open its own prints an
    error, goes on without the batch, and training would wait for that forever.
    """
    given = tempfile.gettempdir()
    if _excess(f"{given}/pymp-12345678") <= 0:
        return
    if multiprocessing.get_sharing_strategy() != "file_descriptor":
        return
    excess = _excess(util.get_temp_dir())  # recent Pythons choose a shorter one by themselves
    if excess > 0:
        raise OSError(
            f"workers of data loaders can't send batches: in {given} the paths of their sockets"
            f" are {counted(excess, 'byte')} too long; set TMPDIR to a shorter path, for instance"
            " in environment.environment_variables, or num_workers to 0"
        )


def _excess(folder: str) -> int:
    return len(os.fsencode(f"{folder}/listener-12345678")) - _LONGEST_SOCKET


class Worker:
    """Sets a worker process up; its `start` is meant to be the `worker_init_fn`."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self._worker_init_fn = worker_init_fn

    def start(self, worker: int) -> None:
        """Let the preemption's signal pass, then run the user's own function."""
        survive_one_preemption_signal()
        if self._worker_init_fn is not None:
            self._worker_init_fn(worker)


class Numbering(NamedTuple):
    """The trial's seed, the number of the first batch among all ranks, the distance to the next
    one of the same rank, and after how many of these it begins again."""

    seed: int
    first: int
    stride: int
    batches: int


class SeededWorker(Worker):
    """Seeds random numbers again for every batch, by the number of the batch.

    So random augmentation doesn't depend on how often training was stopped, or on the number of
    workers. Workers take batches in turns, so each knows the numbers of its own. `collate`, which
    is called when a batch has been read, is meant to be the `collate_fn`.
    """

    def __init__(
        self,
        worker_init_fn: Callable[[int], None] | None,
        collate_fn: Callable[[list[Any]], Any],
        num_workers: int,
        numbering: Numbering,
    ) -> None:
        super().__init__(worker_init_fn)
        self._collate_fn = collate_fn
        self._num_workers = num_workers
        self._numbering = numbering
        self._position = self._worker = 0

    def start(self, worker: int) -> None:
        """As any worker, then get ready for this worker's first batch."""
        super().start(worker)
        self._position = self._worker = worker
        self._seed()

    def collate(self, records: list[Any]) -> Any:
        """Make the batch, then get ready for the next batch."""
        batch = self._collate_fn(records)
        self._position += self._num_workers
        if self._position >= self._numbering.batches:
            self._position = self._worker
        self._seed()
        return batch

    def _seed(self) -> None:
        seed, first, stride, _ = self._numbering
        mixed = mixed_seed(seed, first + self._position * stride)
        torch.manual_seed(mixed)
        random.seed(mixed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(mixed % 2**32)


def survive_one_preemption_signal() -> None:
    """In a job, let Slurm's SIGTERM pass: on some sites it comes to every process of the step.

    The batches until the checkpoint still have to be loaded. Any other SIGTERM ends the process,
    and so does a second SIGTERM: it is how a loader ends workers that hang.
    """
    flag = PreemptFlag.of_this_node()
    if flag is None:
        return

    def on_term(number: int, frame: object) -> None:
        known = flag.explains_signal()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if not known:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, on_term)
