"""The recorder: a process beside a run's code that reports what the code logs.

It is the run's only writer. Its node's agent starts it, gives it the channel as standard input, and
closes the channel once the code has ended. The recorder then reports the rest and exits. Where the
code calls `core.init()` itself, the recorder leaves the run to it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from detslurm import core
from detslurm._base.info import get_cluster_info
from detslurm.config.run_config import RunConfig
from detslurm.core import _software
from detslurm.core._console_log import show_log
from detslurm.core._distributed import DistributedContext
from detslurm.core._recorder import LEAVE, OtherRecords
from detslurm.errors import MetricError
from detslurm.record.groups import Groups
from detslurm.record.steps import Gatherer, Message, MetricReport, message_of
from detslurm.store import StoreError

logger = logging.getLogger("detslurm.record")

# Values of one step come together: after so long without another, the step is complete.
_QUIET_SECONDS = 0.5
# Lines that wait here while the store is slow; further ones are dropped and counted.
_MOST_LINES = 500_000


class Channel:
    """Reads lines in a thread, so that the pipe has room also while the store is slow."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self.dropped = 0
        threading.Thread(target=self._read, name="channel", daemon=True).start()

    def _read(self) -> None:
        rest = b""
        while chunk := os.read(self._fd, 1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            with self._changed:
                room = _MOST_LINES - len(self._lines)
                self._lines += lines[:room]
                self.dropped += len(lines[room:])
                self._changed.notify()
        with self._changed:
            self._ended = True
            self._changed.notify()

    def lines(self) -> Iterator[bytes | None]:
        """Yield each line, and None after a while without any, until the channel is closed."""
        while True:
            with self._changed:
                if not self._lines and not self._ended:
                    self._changed.wait(_QUIET_SECONDS)
                line = self._lines.popleft() if self._lines else None
                if line is None and self._ended:
                    return
            yield line


class RunReports:
    """Reports through the Core API; the context begins with the first report."""

    def __init__(self, config: RunConfig) -> None:
        self._searcher = config.searcher
        self._context: core.Context | None = None
        self._times: dict[str, float] = {}
        self._told: set[str] = set()

    def report(self, report: MetricReport) -> None:
        """Report metrics. Raises `OtherRecords` where the code records the run itself."""
        context = self._begun()
        values: dict[str, Any] = dict(report.values)
        self._note_time(values)
        if report.group == "validation" and values.keys() & {*self._searcher.compared}:
            values = {**self._time(report.step), **values}
        try:
            context.train.report_metrics(report.group, report.step, values)
        except MetricError as err:  # a report of the step without the searcher's metrics
            logger.debug("%s", err)
        except ValueError as err:
            self._tell(str(err))

    def close(self) -> None:
        """Write the rest."""
        if self._context is not None:
            self._context.close()

    def _begun(self) -> core.Context:
        if self._context is None:
            _software.runs_code = False
            self._context = core.init(distributed=DistributedContext())
            self._context.train._show_nothing()  # the script prints what it likes
            self._context.train._spare_the_final()
        return self._context

    def _note_time(self, values: dict[str, Any]) -> None:
        """Remember the search's time metric, wherever the script logs it."""
        wanted = self._searcher.time_metric
        if wanted is not None:
            names = (wanted, wanted.removesuffix("s"))
            found = [value for name, value in values.items() if name.rpartition("/")[2] in names]
            self._times |= {wanted: found[-1]} if found else {}

    def _time(self, step: int) -> dict[str, float]:
        wanted = self._searcher.time_metric
        if wanted in (None, "batches"):
            return {}
        if not self._times:
            self._tell(
                f"the script logs no {wanted!r}, by which the search measures time: the steps at"
                " which it logs validation metrics count instead"
            )
        return {wanted: step, **self._times}

    def _tell(self, text: str) -> None:
        if text not in self._told and len(self._told) < 10:
            self._told.add(text)
            logger.warning("record: %s", text)


def record(channel: Channel, reports: RunReports, gatherer: Gatherer) -> int:
    """Report all that comes; return how many values were dropped on their way."""
    dropped = 0
    due = time.monotonic()
    for line in channel.lines():
        if line == LEAVE:
            _report(reports, gatherer.flush())
            raise OtherRecords
        message = None if line is None else _parse(line)
        if message is not None:
            dropped += message.dropped
            due = time.monotonic() + _QUIET_SECONDS
            _report(reports, gatherer.take(message))
        elif time.monotonic() >= due:
            _report(reports, gatherer.flush())
    _report(reports, gatherer.flush())
    return dropped + channel.dropped


def _report(reports: RunReports, found: Iterator[MetricReport]) -> None:
    for report in found:
        reports.report(report)


def _parse(line: bytes) -> Message | None:
    try:
        return message_of(json.loads(line))
    except ValueError:
        return None


def main() -> int:
    """Record the run that this process's environment describes."""
    show_log()
    info = get_cluster_info()
    assert info is not None
    config = RunConfig.of(info.trial._config)
    validation = () if config.record is None else config.record.validation
    groups = Groups(config.searcher.compared, validation)
    channel, reports = Channel(sys.stdin.fileno()), RunReports(config)
    try:
        gatherer = Gatherer(groups.of, several_ranks=len(info.slot_ids) > 1)
        dropped = record(channel, reports, gatherer)
    except OtherRecords:
        logger.info(
            "record: the script calls core.init() itself. Its own reports count from here on, and"
            " nothing else is recorded"
        )
        dropped = 0
    except (StoreError, OSError, RuntimeError) as err:
        logger.error("record: %s. The script goes on without its metrics", err)
        return 1
    reports.close()
    if dropped:
        logger.warning(
            "record: %d values were dropped, because the script logs faster than they can be"
            " recorded. Log less often, or report through core.init()",
            dropped,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
