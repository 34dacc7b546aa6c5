"""Decisions of a search under a crowd, in virtual time: the log's own code, on any file server.

Every worker is a thread with a log of its own. Of all threads one runs at a time; each call that a
file server would answer, and each sleep, takes virtual seconds alone. So thousands of workers can
be watched on a machine with two cores, and what this machine does besides does not count.

`python -m benchmarks.site.decisions WORKERS [THINK]` prints what so many workers see.
"""

from __future__ import annotations

import heapq
import os
import random
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.latency import CALLS
from detslurm.store import EventLog, event_log, waiting_room

_STACK = 256 * 1024
_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class FileServer:
    """What calls cost.

    Attributes:
        latency: Seconds from a call to its answer.
        service: Seconds that the server itself works for each call, one after the other.
    """

    latency: float = 0.002
    service: float = 0.0


@dataclass(frozen=True)
class Crowd:
    """What its workers saw.

    Attributes:
        seconds: The virtual seconds that it took.
        waits: Seconds from a report to its verdict, ascending.
        calls: Calls of all workers, by name.
        facts: How many facts the log has.
        least: The fewest decisions that a worker got.
    """

    seconds: float
    waits: list[float]
    calls: Counter[str]
    facts: int
    least: int

    @property
    def rate(self) -> float:
        """Decisions a second."""
        return len(self.waits) / self.seconds

    def wait(self, share: float) -> float:
        """The wait that this share of all decisions stays below."""
        return self.waits[min(int(share * len(self.waits)), len(self.waits) - 1)]

    def each(self, name: str) -> float:
        """Calls of this name for each decision."""
        return self.calls[name] / len(self.waits)


@dataclass
class _Clock:
    """Virtual time: the thread whose moment comes first runs, and no other."""

    server: FileServer
    now: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    _busy_until: float = 0.0
    _turns: list[tuple[float, int, threading.Event]] = field(default_factory=list)
    _number: int = 0
    _mine: threading.local = field(default_factory=threading.local)

    def start(self, work: Callable[[], None]) -> threading.Thread:
        """A thread that begins now, in its turn."""
        turn = self._queued(0.0)

        def run() -> None:
            turn.wait()
            self._mine.inside = True
            try:
                work()
            finally:
                self.next()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def sleep(self, seconds: float) -> None:
        """Let others run for so long."""
        turn = self._queued(seconds)
        self.next()
        turn.wait()

    def call(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """A call that takes its time, where a worker makes it."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._mine, "inside", False):
                self.calls[name] += 1
                begins = max(self.now, self._busy_until)
                self._busy_until = begins + self.server.service
                # It takes effect at the server, and half of the way is behind it then.
                half = self.server.latency / 2
                self.sleep(self._busy_until - self.now + half)
                try:
                    return real(*args, **kwargs)
                finally:
                    self.sleep(half)
            return real(*args, **kwargs)

        return timed

    def _queued(self, seconds: float) -> threading.Event:
        self._number += 1
        turn = threading.Event()
        heapq.heappush(self._turns, (self.now + seconds, self._number, turn))
        return turn

    def next(self) -> None:
        """Let the thread run whose moment comes first."""
        if self._turns:
            self.now, _, turn = heapq.heappop(self._turns)
            turn.set()


class _Counting:
    """A search that decides nothing: what the log costs, and no more."""

    def initial(self) -> list[int]:
        return [0]

    def apply(self, state: list[int], events: list[dict[str, Any]]) -> None:
        state[0] += len(events)

    def dump(self, state: list[int]) -> bytes:
        return str(state[0]).encode()

    def load(self, data: bytes) -> list[int]:
        return [int(data)]

    def may_come_late(self, state: list[int], events: list[dict[str, Any]]) -> bool:
        return True


@contextmanager
def _virtual(clock: _Clock) -> Iterator[None]:
    times = SimpleNamespace(sleep=clock.sleep, monotonic=lambda: clock.now)
    with ExitStack() as stack:
        for name in CALLS:
            real = getattr(os, name)
            stack.enter_context(mock.patch.object(os, name, clock.call(name, real)))
        for module in (event_log, waiting_room):
            stack.enter_context(mock.patch.object(module, "time", times))
        yield


def crowd(
    workers: int,
    *,
    decisions: int = 5,
    think: float = 0.0,
    behind: int = 0,
    server: FileServer | None = None,
) -> Crowd:
    """Let workers report so often, each after the verdict on its last report.

    Args:
        workers: How many there are; all begin at once.
        decisions: How many each waits for.
        think: Seconds of training between a verdict and the next report, on average; exponential.
        behind: How many facts others have committed since these workers last read the log.
        server: What calls cost.

    Returns:
        What they saw, the same for the same arguments up to the names that are drawn.
    """
    clock = _Clock(server or FileServer())
    folder = Path(tempfile.mkdtemp(dir=_MEMORY if Path(_MEMORY).is_dir() else None))
    logs = [EventLog(folder, _Counting()) for _ in range(workers)]
    other = EventLog(folder, _Counting())
    for _ in range(behind):
        other.commit([{"e": "validated"}])
    waits: list[float] = []
    got = [0] * workers

    def work(number: int) -> None:
        drawn, log = random.Random(number), logs[number]
        for index in range(decisions):
            if think:
                clock.sleep(drawn.expovariate(1 / think))
            began = clock.now
            log.commit(
                [{"e": "validated", "trial": number, "time": index, "metric": drawn.random()}]
            )
            waits.append(clock.now - began)
            got[number] += 1

    kept = threading.stack_size(_STACK)
    try:
        with _virtual(clock):
            threads = [clock.start(partial(work, number)) for number in range(workers)]
            clock.next()
            for thread in threads:
                thread.join()
        facts = sum(1 for _ in folder.glob("*.json")) - behind
    finally:
        threading.stack_size(kept)
        shutil.rmtree(folder)
    return Crowd(clock.now, sorted(waits), clock.calls, facts, min(got))


def main(argv: list[str]) -> int:
    """Print what a crowd of that size sees, at 2 ms a call."""
    seen = crowd(int(argv[0]), think=float(argv[1]) if len(argv) > 1 else 0.0)
    waits = ", ".join(f"{1e3 * seen.wait(share):.0f}" for share in (0.5, 0.99, 1.0))
    each = seen.calls.total() / len(seen.waits)
    print(f"{seen.rate:,.0f} decisions/s in {seen.facts:,} facts, {each:.1f} calls each, of which")
    print(", ".join(f"{name} {seen.each(name):.2f}" for name in sorted(seen.calls)))
    print(f"waits: median, p99 and longest {waits} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
