"""Runs that hold slots and do nothing: a rank that hangs, and all others that wait for it.

A run is idle while no process of it uses its CPUs, its GPUs compute nothing, and it neither prints
nor reports. An unreadable figure counts as work: unknown never warns, restarts or pauses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from detslurm._base.quantities import counted
from detslurm.exec.signals import is_gap
from detslurm.store import StoreError, lines_of
from detslurm.store.errors import CorruptRecord
from detslurm.store.frame import unframe_all
from detslurm.store.run_usage import is_idle

# A node whose agent has been silent for so long is no longer known to be idle.
_STALE: Final = 90.0
_PROFILE: Final = b'"t":"profile"'


class NodeActivity(NamedTuple):
    """The samples of one node: when its newest one came, and since when all of them were idle."""

    newest: float
    idle_since: float | None

    def after(self, now: float, seconds: float, *, idle: bool) -> NodeActivity:
        """With one more sample, of the last `seconds`."""
        since = now - seconds if self.idle_since is None else self.idle_since
        return NodeActivity(now, since if idle else None)


def idle_seconds(
    activity: Mapping[int, NodeActivity], nodes: int, reported: float, now: float
) -> float:
    """For how long all nodes were idle and nothing was reported; 0 where a node is not known."""
    if len(activity) < nodes:
        return 0.0
    since, until = reported, now
    for node in activity.values():
        if node.idle_since is None or now - node.newest > _STALE:
            return 0.0
        since = max(since, node.idle_since)
        until = min(until, node.newest)  # of what came after it nothing is known
    return max(until - since, 0.0)


class RecordsNews:
    """Whether the code of a run has recorded anything since the last look; the profiler's figures
    come from a thread, also of code that hangs."""

    def __init__(self, path: str) -> None:
        self._path, self._end = path, 0

    def __call__(self) -> bool:
        news, end = False, self._end
        for offset, line in lines_of(self._path, None, self._end, []):
            end = offset + len(line) + 1
            news |= _PROFILE not in line or _is_news(line)
        self._end = end  # not after a failure: then all of it is read again
        return news


def _is_news(line: bytes) -> bool:
    try:
        return any(record.get("t") != "profile" for record in unframe_all(line))
    except CorruptRecord:
        return True  # an unreadable record may be a report


class IdleGuard:
    """Watches one run by the samples of its nodes and by what it reports.

    It may be idle for `limit` seconds; `action` is "warn", "restart" or "pause".
    `has_news`: whether the run has recorded anything since the last call.
    """

    def __init__(
        self,
        limit: float,
        action: str,
        *,
        nodes: Sequence[str],
        slots: int,
        has_news: Callable[[], bool],
    ) -> None:
        self.action = action
        self._limit, self._nodes, self._slots, self._has_news = limit, nodes, slots, has_news
        self._activity: dict[int, NodeActivity] = {}
        self._stopped: dict[int, int] = {}
        self._ended: set[int] = set()
        self._reported = self._looked = 0.0

    def on_sample(self, node: int, sample: Mapping[str, Any], now: float) -> None:
        """Take in a sample of one node."""
        seconds = float(sample.get("seconds") or 0.0)
        idle = not is_gap(seconds) and is_idle(sample, self._slots / len(self._nodes)) is True
        known = self._activity.get(node, NodeActivity(now, None))
        self._activity[node] = known.after(now, seconds, idle=idle)
        self._stopped[node] = int(sample.get("stopped") or 0)

    def on_end(self, node: int, now: float) -> None:
        """The code of one node has ended: that of others may hang all the same, but not since
        before that node was last at work."""
        self._ended.add(node)
        self._stopped.pop(node, None)
        known = self._activity.pop(node, None)
        since = None if known is None else known.idle_since
        self._reported = max(self._reported, now if since is None else since)

    def on_output(self, now: float) -> None:
        """The run has printed something."""
        self._reported = now

    def is_idle(self, now: float) -> bool:
        """Whether it has been idle for too long."""
        idle, often = self._idle_seconds(now), self._limit / 4
        # The run's records count from the moment when they are seen.
        if idle >= self._limit or (idle >= often and now - self._looked >= often):
            self._looked = now
            if self._reported_meanwhile():
                self._reported = now
        return self._idle_seconds(now) >= self._limit

    def _reported_meanwhile(self) -> bool:
        try:
            return self._has_news()
        except StoreError:
            return True  # an unreadable record may be a report

    def on_resumed(self) -> None:
        """It is at work again; the next time it has twice as long, for each warning is a fact."""
        self._limit *= 2

    def _idle_seconds(self, now: float) -> float:
        nodes = len(self._nodes) - len(self._ended)
        return idle_seconds(self._activity, nodes, self._reported, now) if nodes else 0.0

    def text(self) -> str:
        """The fault, in a sentence."""
        stopped = [name for node, name in enumerate(self._nodes) if self._stopped.get(node)]
        where = f"; processes on {', '.join(stopped[:8])} are stopped (SIGSTOP)" if stopped else ""
        minutes = counted(self._limit / 60, "minute")
        return f"nothing was computed, printed or reported for {minutes}{where}"
