"""What every loop trains, and how its batches are timed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.training import BY_HAND

BATCHES, PERIOD, WARM_UP = 500, 100, 100


class Size(NamedTuple):
    """Records of a batch, their features, and the width of the network.

    `light` is hardly anything but overhead, `heavy` a step of about 2 ms on one core.
    """

    records: int
    features: int
    width: int


SIZES = {"light": Size(2, 8, 8), "heavy": Size(32, 256, 720)}


class Stopwatch:
    """Notes when the user's code is called."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def mark(self) -> None:
        """To be called first thing for every batch."""
        self._marks.append(time.perf_counter())

    def report(self) -> None:
        """Print what a batch takes. Other processes only make it longer, so of the batches at the
        same place between two reports the fastest counts."""
        marks = self._marks[WARM_UP:]
        took = [after - before for before, after in pairwise(marks)]
        fastest = [min(took[place::PERIOD]) for place in range(PERIOD)]
        print(f"microseconds {1e6 * sum(fastest) / PERIOD:.2f}", flush=True)


def train_when_asked(train: Callable[[], None], by_hand: Callable[[], None] | None = None) -> None:
    """Train once for each line of stdin: what is imported for it is imported once.

    With a loop `by_hand` each line says which of the two: in one process, since two differ by more
    than the loops do.
    """
    print("ready", flush=True)
    for line in sys.stdin:
        (by_hand if by_hand and line == f"{BY_HAND}\n" else train)()


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
