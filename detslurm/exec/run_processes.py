"""The processes of a run on this node, and what they have used so far."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from detslurm._base.child_processes import pids, read_proc
from detslurm.exec.orphans import RunMark, mark_of

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# A process that is known to be another's is not read again, for a node has thousands. Now and then
# all are: a pid comes again, and a rank that srun has just forked bears no mark of its run yet.
_SCANS_TO_FORGET = 20
# Fields of /proc/PID/stat behind the name.
_STATE, _PARENT, _TIMES, _RESIDENT = 0, 1, slice(11, 15), 21
# A process that waited for a CPU for so much of the time wants to compute, however little it got.
_STARVED = 0.8


class Process(NamedTuple):
    """The kernel's counts of a process: seconds, with those of children that it has waited for,
    and bytes."""

    parent: int
    state: str
    seconds: float
    resident: int


class Used(NamedTuple):
    """The usage of processes: CPU seconds since they began, bytes now; how many are stopped, and
    how many others have kept from the CPUs since the look before."""

    seconds: float
    resident: int
    stopped: int
    starved: int
    pids: frozenset[int]


class RunProcesses:
    """Those below the agent, and those that bear the mark of its run: ranks that srun has started
    are in a step of their own. `shared` are below the agent for several runs."""

    def __init__(
        self, mark: RunMark, excluded: Iterable[int] = (), *, shared: Sequence[int] = ()
    ) -> None:
        self._mark, self._excluded = mark, frozenset(excluded)
        self.shared = shared
        self._before = 0.0  # seconds of earlier runs
        self._before = self.ended_seconds()
        self._others: set[int] = set()
        self._scans = 0
        self._ended = 0.0  # seconds of marked processes that no process of the run has waited for
        self._roots: dict[int, float] = {}  # seconds of those with a parent outside of the run
        self._looked = time.monotonic()
        self._delays: dict[int, float] = {}

    def parents(self) -> dict[int, int]:
        """The parent of each of them; raises `OSError` where /proc is not readable."""
        return {pid: one.parent for pid, one in self._own(self._candidates()).items()}

    def used(self) -> Used:
        """Their usage up to now; raises `OSError` where /proc is not readable."""
        own = self._own(self._candidates())
        # A process that is no root any more was an orphan for a moment: its parent had just ended.
        self._ended += sum(s for pid, s in self._roots.items() if pid not in own)
        self._roots = {pid: one.seconds for pid, one in own.items() if self._is_root(one, own)}
        return Used(
            seconds=_waited_for()
            - self._before
            + self._ended
            + sum(one.seconds for one in own.values()),
            resident=sum(one.resident for one in own.values()),
            stopped=sum(one.state == "T" for one in own.values()),
            starved=self._starved(own),
            pids=frozenset(own),
        )

    def ended_seconds(self) -> float:
        """The CPU seconds of processes that were waited for, here and by the shared ones."""
        shared = (one.seconds for pid in self.shared if (one := read_process(pid)) is not None)
        return _waited_for() + sum(shared) - self._before

    def _starved(self, own: Iterable[int]) -> int:
        then, self._looked = self._looked, time.monotonic()
        known, self._delays = self._delays, {pid: cpu_delay(pid) for pid in own}
        most = _STARVED * (self._looked - then)
        return sum(delay - known.get(pid, 0.0) > most for pid, delay in self._delays.items())

    @staticmethod
    def _is_root(one: Process, own: Mapping[int, Process]) -> bool:
        return one.parent not in own and one.parent != os.getpid()

    def _candidates(self) -> dict[int, Process]:
        living = set(pids())
        self._others &= living
        if self._scans % _SCANS_TO_FORGET == 0:
            self._others.clear()
        self._scans += 1
        read = {pid: read_process(pid) for pid in living - self._others - self._excluded}
        return {pid: one for pid, one in read.items() if one is not None}

    def _own(self, candidates: Mapping[int, Process]) -> dict[int, Process]:
        """The run's among these; the rest is remembered as others'."""
        known: dict[int, bool] = {os.getpid(): True}

        def is_own(pid: int) -> bool:
            if pid not in known:
                one = candidates.get(pid)
                known[pid] = one is not None and (is_own(one.parent) or mark_of(pid) == self._mark)
            return known[pid]

        own = {pid: one for pid, one in candidates.items() if is_own(pid)}
        self._others |= candidates.keys() - own.keys()
        own.pop(os.getpid(), None)
        return own


def read_process(pid: int) -> Process | None:
    """The kernel's counts of a process; None once it has ended."""
    stat = read_proc(f"{pid}/stat")
    if stat is None:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split(b" ")  # the name may hold anything
    return Process(
        parent=int(fields[_PARENT]),
        state=fields[_STATE].decode(),
        seconds=sum(map(int, fields[_TIMES])) / _TICK,
        resident=int(fields[_RESIDENT]) * _PAGE,
    )


def cpu_delay(pid: int) -> float:
    """The seconds that its main thread has waited for a CPU; 0 where the kernel counts none."""
    counts = (read_proc(f"{pid}/schedstat") or b"").split()
    return int(counts[1]) / 1e9 if len(counts) == 3 else 0.0


def _waited_for() -> float:
    times = os.times()
    return times.children_user + times.children_system
