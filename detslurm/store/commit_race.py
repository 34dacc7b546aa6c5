"""The race for the next number of an event log, as pure steps: facts in, the next turn out.

The loop around these steps is in `event_log.py`, the files are in `waiting_room.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from itertools import islice, takewhile
from typing import Final, NamedTuple, Self

from detslurm.store.waiting_room import CommitRequest

REMEMBERED: Final = 256
"""How many facts' marks are remembered: a copy of a request lies no further from the first.

It is part of the log's format, because it decides which copies count. All versions need the same
number (docs/formats.md).
"""
# How many requests a fact takes along.
_MOST: Final = 512
# How many of those that wait commit for all at once: a winner may be slow, or die.
_LEADERS: Final = 2
_ANY_NUMBER: Final = 1 << 20
LONGEST: Final = 1.0
"""How many seconds a process waits for others at once."""


class Turn(Enum):
    """The next step of a process for the events that it commits."""

    DONE = "its events are in the log"
    ASK_AGAIN = "its mark may be forgotten before its events are in the log"
    WAIT = "others commit first, and take its events along"
    LEAD = "it commits its own events, and those of others"


class Seen(NamedTuple):
    """How much of the log a process has read, and the marks of the last facts that it read."""

    position: int
    marks: AbstractSet[str]

    def is_open(self, request: CommitRequest) -> bool:
        """Whether the next fact may have it: it is in no fact before, and that can be known."""
        return request.mark not in self.marks and self.position < request.position + REMEMBERED

    def waiting(self, names: Iterable[str]) -> Iterator[CommitRequest]:
        """The open requests of a listing, without their events.

        Names are read as far as need be: each of a thousand that wait has a thousand others.
        """
        for name in names:
            request = CommitRequest.of_name(name)
            if request is not None and self.is_open(request):
                yield request

    def taken_along(self, names: Iterable[str]) -> Iterator[CommitRequest]:
        """The open requests of a listing that a fact takes along, with their events, in order."""
        for request in islice(self.waiting(names), _MOST):
            if (whole := request.read()) is not None:
                yield whole


def next_turn(
    own: CommitRequest, seen: Seen, names: Sequence[str] = (), *, shown: str = "", leaders: int = 1
) -> Turn:
    """Decide what a process does next.

    Args:
        own: The request of the process.
        seen: Its reading of the log.
        names: The other requests that wait, in order: those that asked before come first.
        shown: The name under which its own request waits. No other request goes before a request
            that is not shown.
        leaders: How many of those that wait commit for all.
    """
    if own.mark in seen.marks:
        return Turn.DONE
    if not seen.is_open(own):
        return Turn.ASK_AGAIN
    ahead = seen.waiting(takewhile(lambda name: name < shown, names))
    return Turn.WAIT if sum(1 for _ in islice(ahead, leaders)) == leaders else Turn.LEAD


class Patience(NamedTuple):
    """How long a process waits in a round, and how many lead in it: each round has twice as many.

    So leaders that are slow or dead cost time, and no more.
    """

    pause: float
    leaders: int = _LEADERS

    def seconds(self, turn: Turn, *, is_shown: bool, chance: float) -> float:
        """How long this round waits before it reads on; `chance` is from 0 to 1."""
        if turn is Turn.WAIT:
            return self.pause * (0.75 + 0.5 * chance)
        # Events that are not shown lose races against other nodes' commits: not in step with them.
        return 0.0 if is_shown else self.pause * chance

    def longer(self) -> Self:
        """The patience in the next round."""
        leaders = min(2 * self.leaders, _ANY_NUMBER)
        return self._replace(pause=min(2 * self.pause, LONGEST), leaders=leaders)
