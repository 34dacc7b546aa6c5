"""Lines of a log, and which of them are wanted."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from detslurm.sdk.enums import LogLevel

SOURCES = ("code", "detslurm")
"""Where lines come from: from what the experiment runs, and from detslurm around it."""

_LINE = re.compile(r"\[(?P<time>[^\]]*)\] (?:\[rank=(?P<rank>\d+)\] )?\|\| (?P<text>.*)", re.S)
_OWN = "detslurm: "
_START = 200  # a level stands before; lines of megabytes are not searched

_NAMES = "|".join(level.name for level in LogLevel)
# "WARNING: ...", "WARNING:root:...", "[WARNING] ...", "2026-11-21 04:46:03,120 - x - WARNING - ..."
_NAMED = re.compile(
    rf"(?:\d[-\d:.,TZ +]*)?(?:[\w.]*[ \-|:]+)??\[?\b({_NAMES})\b\]?(?::| [-|:]|(?<=\]))"
)
# glog, as torch has it: "W1121 23:32:09.330000 835 torch/..."
_GLOG = re.compile(r"([DIWEF])\d{4} \d\d:\d\d:\d\d")
_LETTERS = {
    "D": LogLevel.DEBUG,
    "I": LogLevel.INFO,
    "W": LogLevel.WARNING,
    "E": LogLevel.ERROR,
    "F": LogLevel.CRITICAL,
}
# Torch puts the rank before the lines of a traceback.
RANK_PREFIX = re.compile(r"\[rank\d+\]: ")
_FAILURE = (
    "Traceback (most recent call last)",
    "During handling of the above exception",
    "The above exception was the direct cause",
)
_ORDER = list(LogLevel)


class LogLine(NamedTuple):
    """One line: which run, when (RFC 3339), which rank (None is the runner's own), what."""

    run: int
    time: str
    rank: int | None
    text: str
    raw: str

    @property
    def source(self) -> str:
        """One of `SOURCES`."""
        return "detslurm" if self.rank is None and self.text.startswith(_OWN) else "code"


class LogText(Iterator[str]):
    """Lines that are read when they are asked for; its repr prints the first ones."""

    _PRINTED = 1000

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)

    def __next__(self) -> str:
        return next(self._lines)

    def __repr__(self) -> str:
        first = list(islice(self._lines, self._PRINTED + 1))
        self._lines = chain(first, self._lines)
        more = ["... (iterate to get all lines)"] if len(first) > self._PRINTED else []
        return "\n".join([*first[: self._PRINTED], *more])


@dataclass(frozen=True)
class Filter:
    """The wanted lines; bounds compare as text, for all stamps have the same form."""

    ranks: Collection[int] = ()
    before: str | None = None
    after: str | None = None
    text: str | None = None
    level: LogLevel | None = None
    sources: Collection[str] = ()

    def takes(self, line: LogLine) -> bool:
        """Whether the line is wanted, its level aside."""
        if self.ranks and line.rank not in self.ranks:
            return False
        if self.sources and line.source not in self.sources:
            return False
        if self.text is not None and self.text not in line.text:
            return False
        if self.before is not None and line.time >= self.before:
            return False
        return self.after is None or line.time > self.after

    def reader(self) -> Callable[[LogLine], bool]:
        """Whether a line is wanted, for all lines of a log in order: levels come from before."""
        if self.level is None:
            return self.takes
        levels, least = LevelReader(), _ORDER.index(self.level)

        def takes(line: LogLine) -> bool:
            return _ORDER.index(levels.level(line)) >= least and self.takes(line)

        return takes


EVERYTHING = Filter()


class LevelReader:
    """The levels of a log's lines, read in order: INFO without any, ERROR for a traceback; indented
    lines belong to the line before them, of the same rank."""

    def __init__(self) -> None:
        self._last: dict[int | None, LogLevel] = {}
        self._failing: set[int | None] = set()

    def level(self, line: LogLine) -> LogLevel:
        """The level of the next line."""
        found = self._level(line.rank, RANK_PREFIX.sub("", line.text))
        self._last[line.rank] = found
        return found

    def _level(self, rank: int | None, text: str) -> LogLevel:
        if text.startswith(_FAILURE):
            self._failing.add(rank)
            return LogLevel.ERROR
        if text[:1] in ("", " ", "\t"):
            return self._last.get(rank, LogLevel.INFO)
        in_traceback = rank in self._failing
        self._failing.discard(rank)
        return LogLevel.ERROR if in_traceback else named_level(text)


def named_level(text: str) -> LogLevel:
    """The level that a line names at its start, in any of the usual forms; else INFO."""
    text = text[:_START].removeprefix(_OWN)
    if match := _GLOG.match(text):
        return _LETTERS[match[1]]
    match = _NAMED.match(text)
    return LogLevel[match[1]] if match else LogLevel.INFO


def parse(raw: str, run: int) -> LogLine:
    """A line of a log file."""
    match = _LINE.fullmatch(raw)
    if match is None:
        return LogLine(run, "", None, raw, raw)
    rank = match["rank"]
    return LogLine(run, match["time"], int(rank) if rank else None, match["text"], raw)


def timestamp(text: str | int | float) -> str:
    """A bound as logs stamp their lines, from RFC 3339 or unix seconds. Raises ValueError."""
    from datetime import UTC, datetime

    try:
        seconds = float(text)
    except ValueError:
        moment = datetime.fromisoformat(str(text))
    else:
        moment = datetime.fromtimestamp(seconds, UTC)
    if moment.tzinfo is None:
        moment = moment.astimezone()
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def bound(value: str | float | None) -> str | None:
    """A bound that need not be given, as `timestamp`. Raises ValueError."""
    try:
        return None if value is None else timestamp(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{value!r} is neither RFC 3339 (2026-11-21T04:46:03Z) nor seconds since 1970"
        ) from error


def log_level(value: object) -> LogLevel | None:
    """A level by its name, in either case, or as any enum that has Determined's names."""
    if value is None:
        return None
    name = str(getattr(value, "name", value)).upper()
    if name not in LogLevel.__members__:
        raise ValueError(f"{value!r} is not a level: {', '.join(LogLevel.__members__)}")
    return LogLevel[name]


def known_sources(given: Collection[str] | None) -> frozenset[str]:
    """Sources that lines have. Raises ValueError for others."""
    if strange := set(given or ()) - set(SOURCES):
        raise ValueError(f"{sorted(strange)} can't be sources: lines are of {' or '.join(SOURCES)}")
    return frozenset(given or ())
