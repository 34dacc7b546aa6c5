"""What every loop trains, and how its batches are timed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.training import LOOP

BATCHES, PERIOD, WARM_UP, TURN = 500, 100, 100, 10


class Size(NamedTuple):
    """Records of a batch, their features, and the width of the network.

    `light` is hardly anything but overhead, `heavy` a step of about 2 ms on one core.
    """

    records: int
    features: int
    width: int


SIZES = {"light": Size(2, 8, 8), "heavy": Size(32, 256, 720)}


class Stopwatch:
    """Notes when the user's code is called.

    The same loop by hand trains in turns with the one that is measured, some batches each: a
    machine is slower in one second than in the next by more than the loops differ.
    """

    def __init__(self, by_hand: Iterable[None] = ()) -> None:
        """`by_hand` trains for a turn at each step, and reports at its end."""
        self._by_hand = iter(by_hand)
        self._marks: list[float] = []
        self._paused = 0.0

    def mark(self) -> None:
        """To be called first thing for every batch."""
        if self.is_turn_over:
            with self.paused():
                next(self._by_hand, None)
        self._marks.append(time.perf_counter() - self._paused)

    @property
    def is_turn_over(self) -> bool:
        """Whether the other loop is to train now."""
        return len(self._marks) % TURN == 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time that does not count."""
        began = time.perf_counter()
        yield
        self._paused += time.perf_counter() - began

    def report(self, loop: str = LOOP) -> None:
        """Print what a batch takes. Other processes only make it longer, so of the batches at the
        same place between two reports the fastest counts."""
        for _ in self._by_hand:
            pass
        marks = self._marks[WARM_UP:]
        took = [after - before for before, after in pairwise(marks)]
        fastest = [min(took[place::PERIOD]) for place in range(PERIOD)]
        print(f"{loop}{1e6 * sum(fastest) / PERIOD:.2f}", flush=True)


def train_when_asked(train: Callable[[], None]) -> None:
    """Train once for each line of stdin: what is imported for it is imported once."""
    print("ready", flush=True)
    for _ in sys.stdin:
        train()


def size() -> Size:
    """The size that the command line names; sets torch up for it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return SIZES[sys.argv[1]]


def data(of: Size) -> TensorDataset:
    """Records for all batches of an epoch, in memory."""
    records = BATCHES * of.records
    return TensorDataset(torch.randn(records, of.features), torch.randint(2, (records,)))


def network(of: Size) -> Any:
    return nn.Sequential(
        nn.Linear(of.features, of.width),
        nn.ReLU(),
        nn.Linear(of.width, of.width),
        nn.ReLU(),
        nn.Linear(of.width, 2),
    )


def optimizer(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def loss(model: Any, batch: Any) -> Any:
    records, labels = batch
    return nn.functional.cross_entropy(model(records), labels)
