"""The virtual time of other projects' methods, which are asked for work and told of results."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from benchmarks.quality.problem import Point, Problem, Report


class Training(NamedTuple):
    """A part of a trial's training that a method asks for."""

    trial: str
    point: Point
    start: int
    end: int


class Asked(Protocol):
    """A method that is asked and told."""

    def ask(self) -> Training | None:
        """Return what a free worker does next; None if it has to wait for another's result."""

    def tell(self, training: Training, loss: float) -> None:
        """Take the result of a training. Its worker asks next, before any that waits."""


def reports(method: Asked, problem: Problem, workers: int, seed: int) -> Iterator[Report]:
    """Yield a method's reports in order of time, on workers that never wait for each other."""
    busy: list[tuple[float, int, Training]] = []
    now, count, idle = 0.0, 0, workers
    while True:
        while idle and (training := method.ask()) is not None:
            seconds = problem.seconds(training.point, training.start, training.end)
            count, idle = count + 1, idle - 1
            heapq.heappush(busy, (now + seconds, count, training))
        if not busy:
            return
        now, _, training = heapq.heappop(busy)
        loss = problem.loss(training.point, training.end, seed)
        method.tell(training, loss)
        idle += 1
        yield Report(now, training.point, training.end, loss)
