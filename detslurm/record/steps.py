"""Gather recorded values into reports: values of a group at one step become one report. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from detslurm.core._reported_steps import ReportedSteps

_MOST_STEPS = 2**62


class Message(NamedTuple):
    """Values that a source has sent together; without a step the source counts."""

    source: str
    step: int | None
    values: Mapping[str, float]
    group: str | None = None  # from a pattern for the log; else the names decide
    dropped: int = 0  # values that the sender could not send before


class MetricReport(NamedTuple):
    """The metrics of a group at a step."""

    group: str
    step: int
    values: dict[str, float]


def message_of(plain: Any) -> Message | None:
    """Return a line of the channel as a message; None of anything else."""
    if not isinstance(plain, dict) or not isinstance(plain.get("v"), dict):
        return None
    values = {str(k): v for k, v in plain["v"].items() if type(v) in (int, float)}
    group, dropped = plain.get("g"), plain.get("d")
    return Message(
        source=str(plain.get("s")),
        step=_whole(plain.get("k")),
        values=values,
        group=group if isinstance(group, str) else None,
        dropped=dropped if isinstance(dropped, int) else 0,
    )


def _whole(step: Any) -> int | None:
    if not isinstance(step, int | float) or not math.isfinite(step) or not 0 <= step < _MOST_STEPS:
        return None
    return int(step)


class _Count:
    """The steps of one name from one source."""

    def __init__(self) -> None:
        self.last, self.offset, self.unnumbered = -1, 0, 0

    def step(self, given: int | None, *, counts_on: bool) -> int:
        """Return the step to report at. With `counts_on`, a count that begins again goes on."""
        if given is None:
            self.unnumbered += 1
            return self.unnumbered
        if given < self.last and counts_on:
            self.offset += self.last + 1 - given
        self.last = given
        return given + self.offset


class Gatherer:
    """Turns messages into reports.

    A report is complete when its group goes on to another step, or when `flush` is called. A name
    is reported once a step: of a value that comes through two sources, the first stands. With
    `several_ranks`, a step that comes again in the log is taken for another rank's.
    """

    def __init__(self, group_of: Callable[[str], str], *, several_ranks: bool = False) -> None:
        self._group_of, self._several_ranks = group_of, several_ranks
        self._counts: defaultdict[tuple[str, str], _Count] = defaultdict(_Count)
        self._reported: defaultdict[str, ReportedSteps] = defaultdict(ReportedSteps)
        self._pending: dict[str, MetricReport] = {}

    def take(self, message: Message) -> Iterator[MetricReport]:
        """Take a message; yield the reports that it completes."""
        for name, value in message.values.items():
            group = message.group or self._group_of(name)
            counts_on = message.group is None or not self._several_ranks
            count = self._counts[message.source, name]
            step = count.step(message.step, counts_on=counts_on)
            pending = self._pending.get(group)
            if pending is not None and pending.step != step:
                yield from self._complete(group)
            if self._reported[group].repeated(step, {name}):
                continue
            self._pending.setdefault(group, MetricReport(group, step, {})).values.setdefault(
                name, value
            )

    def flush(self) -> Iterator[MetricReport]:
        """Yield the values gathered so far."""
        for group in list(self._pending):
            yield from self._complete(group)

    def _complete(self, group: str) -> Iterator[MetricReport]:
        report = self._pending.pop(group)
        self._reported[group].add(report.step, report.values.keys())
        yield report
