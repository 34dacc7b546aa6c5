"""Virtual time: processes that wait, and servers whose capacity those that use them share.

A process is a generator of waits; a wait is given what to call once it is over.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from heapq import heappop, heappush
from itertools import count

Resume = Callable[[], None]
Wait = Callable[[Resume], None]
Process = Generator[Wait, None, None]


class Simulation:
    """The clock, and what is due."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Resume]] = []
        self._order = count()

    def call_at(self, time: float, action: Resume) -> None:
        """Call `action` when the clock shows `time`."""
        heappush(self._due, (time, next(self._order), action))

    def sleep(self, seconds: float) -> Wait:
        """Wait so long."""
        return lambda resume: self.call_at(self.now + seconds, resume)

    def start(self, process: Process) -> None:
        """Let a process go on until it waits."""
        wait = next(process, None)
        if wait is not None:
            wait(partial(self.start, process))

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass while something is due, or up to a condition."""
        while self._due and not until():
            self.now, _, action = heappop(self._due)
            action()


class Server:
    """Serves all that use it at once, in equal shares.

    Args:
        simulation: Whose clock counts.
        capacity: What it does a second for all together.
        each: What it does a second for one at the most: a client that makes one call after the
            other never has more than 1 / its latency of them answered.
        others: How many it serves besides, all the time.
    """

    def __init__(
        self,
        simulation: Simulation,
        capacity: float,
        each: float = math.inf,
        others: float = 0.0,
    ) -> None:
        self._simulation, self.capacity, self.each = simulation, capacity, each
        self._others = others
        self.asked = self.done = 0.0
        self.by_second: dict[int, float] = {}
        self._served = 0.0  # to anyone who was there all the time
        self._since = 0.0
        self._leaving: list[tuple[float, int, Resume]] = []
        self._order = count()
        self._plan = 0  # of all departures that were planned, the last one counts

    def use(self, amount: float) -> Wait:
        """Wait until so much has been done."""
        return partial(self._join, amount)

    @property
    def users(self) -> int:
        """How many use it now."""
        return len(self._leaving)

    @property
    def peak(self) -> float:
        """What it did in its busiest second."""
        return max(self.by_second.values(), default=0.0)

    def _join(self, amount: float, resume: Resume) -> None:
        if amount <= 0:
            self._simulation.call_at(self._simulation.now, resume)
            return
        self._advance()
        self.asked += amount
        heappush(self._leaving, (self._served + amount, next(self._order), resume))
        self._plan_departure()

    def _rate(self) -> float:
        return min(self.each, self.capacity / (len(self._leaving) + self._others))

    def _advance(self) -> None:
        """Account for what was done since the last arrival or departure."""
        since, self._since = self._since, self._simulation.now
        if not self._leaving or self._since == since:
            return
        rate, users, elapsed = self._rate(), len(self._leaving), self._since - since
        self._served += rate * elapsed
        self.done += rate * users * elapsed
        second = int(since)
        while second < self._since:
            part = min(second + 1, self._since) - max(second, since)
            self.by_second[second] = self.by_second.get(second, 0.0) + rate * users * part
            second += 1

    def _plan_departure(self) -> None:
        self._plan += 1
        if self._leaving:
            left = max(self._leaving[0][0] - self._served, 0.0)
            due = self._simulation.now + left / self._rate()
            self._simulation.call_at(due, partial(self._depart, self._plan))

    def _depart(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        first = self._leaving[0][0]
        self._served = max(self._served, first)  # what rounding has left of it
        leaving = []
        while self._leaving and self._leaving[0][0] <= self._served:
            leaving.append(heappop(self._leaving)[2])
        self._plan_departure()
        for resume in leaving:
            resume()


class Places:
    """Slots, of which each user holds one, given in the order of arrival."""

    def __init__(self, simulation: Simulation, names: list[int]) -> None:
        self._simulation = simulation
        self._free = deque(names)
        self._all, self._held, self._since = len(names), 0.0, 0.0
        self._waiting: deque[tuple[Resume, list[int]]] = deque()

    def take(self, into: list[int]) -> Wait:
        """Wait for one; its name is appended to `into`."""

        def join(resume: Resume) -> None:
            self._waiting.append((resume, into))
            self._give()

        return join

    def give_back(self, name: int) -> None:
        """Let another one have it."""
        self._count()
        self._free.append(name)
        self._give()

    @property
    def held(self) -> float:
        """Seconds that slots were taken, all together."""
        self._count()
        return self._held

    def _count(self) -> None:
        now = self._simulation.now
        self._held += (self._all - len(self._free)) * (now - self._since)
        self._since = now

    @property
    def free(self) -> int:
        """How many are free."""
        return len(self._free)

    def _give(self) -> None:
        self._count()
        while self._free and self._waiting:
            resume, into = self._waiting.popleft()
            into.append(self._free.popleft())
            self._simulation.call_at(self._simulation.now, resume)
