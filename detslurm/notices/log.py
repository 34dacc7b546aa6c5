"""The notices of an experiment, and which of them were sent: numbered facts, and a pointer to each.

A sender claims a notice for a recipient by the next number before it sends, and records the answer
afterwards. So a notice is sent at most once: if a sender dies in between, it may have sent the
notice, which is not sent again. The pointers lie in one directory of the user, so that a command
finds with one listing the notices that wait. A pointer precedes its notice, and stays until the
notice is settled.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from detslurm._base.process import Identity
from detslurm.notices.event import Event
from detslurm.notices.pointers import PAUSE, add_pointer, here, is_old
from detslurm.store import ExperimentDir, FactLog, fs

MOST: Final = 50
"""How many alerts and matches of log policies of one experiment are kept: code may raise an alert
at each step."""
# Seconds before a node that failed tries again, at most.
_LONGEST_PAUSE: Final = 6 * 3600.0

Outcome = Literal["sent", "refused", "later", "unknown"]
"""A receiver's answer: "later" if it certainly got nothing, "unknown" if it may have got it."""

Number = Annotated[int, Meta(ge=0)]


class SendResult(msgspec.Struct, frozen=True):
    """The outcome of sending, and a detail without secrets."""

    outcome: Outcome
    detail: str = ""


class NoticeFact(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """A fact of the log, with its number."""

    n: Number = 0
    time: float


class NoticeRaised(NoticeFact, frozen=True, kw_only=True, tag="raised"):
    """Something has happened of which the user wants a notice."""

    event: Event


class NoticeClaimed(NoticeFact, frozen=True, kw_only=True, tag="claimed"):
    """A process is about to send notice `of` to the definition `to`: no other process will."""

    of: Number
    to: str
    host: str = ""
    process: str = ""


class NoticeAnswered(NoticeFact, frozen=True, kw_only=True, tag="answered"):
    """The answer to a claimed notice; after "later" it may be claimed again."""

    of: Number
    to: str
    outcome: Outcome
    detail: str = ""
    host: str = ""


AnyNoticeFact = NoticeRaised | NoticeClaimed | NoticeAnswered


class SendState(msgspec.Struct, frozen=True):
    """How far a notice has come on its way to one recipient."""

    claim: NoticeClaimed | None = None
    answer: NoticeAnswered | None = None
    tries: int = 0

    @property
    def is_settled(self) -> bool:
        """Whether nothing more will be tried."""
        return self.claim is None and self.answer is not None and self.answer.outcome != "later"

    @property
    def is_abandoned(self) -> bool:
        """Whether its sender is dead, or has been silent for a day on another node."""
        if self.claim is None:
            return False
        process = Identity.parse(self.claim.process)
        return (process is not None and process.is_dead()) or is_old(self.claim.time)

    def is_due(self, now: float) -> bool:
        """Whether it may be sent from this node now: a node that failed waits longer each time."""
        if self.claim is not None or self.is_settled:
            return False
        if self.answer is None or self.answer.host != here():
            return True
        return now - self.answer.time >= min(PAUSE * self.tries**2, _LONGEST_PAUSE)


class Notice(msgspec.Struct):
    """An event, and how far it has come on its way to each of its recipients, by name."""

    raised: NoticeRaised
    sending: dict[str, SendState] = msgspec.field(default_factory=dict)

    @property
    def event(self) -> Event:
        return self.raised.event

    def apply(self, fact: NoticeClaimed | NoticeAnswered) -> None:
        """Take in the next fact about it."""
        known = self.sending.get(fact.to, SendState())
        if isinstance(fact, NoticeClaimed):
            self.sending[fact.to] = SendState(fact, known.answer, known.tries + 1)
        else:
            self.sending[fact.to] = SendState(None, fact, known.tries)


class NoticeLog:
    """The notices of one experiment, folded up to fact number `count`.

    `is_readable` is false if a fact is lost or unreadable: it may be a claim, so nothing is sent.
    """

    def __init__(self, experiment: ExperimentDir) -> None:
        self.experiment = experiment
        self.notices: dict[int, Notice] = {}
        self.count, self.is_readable = 0, True
        self._facts = FactLog(experiment.path / "notices")

    def refresh(self) -> None:
        """Fold in the facts that are new. Raises `StoreError`."""
        for plain in self._facts.facts(self.count):
            self.count = int(plain["n"])
            try:
                fact = msgspec.convert(plain, AnyNoticeFact)
            except msgspec.ValidationError:
                self.is_readable = False
                continue
            if isinstance(fact, NoticeRaised):
                self.notices[fact.n] = Notice(fact)
            elif fact.of in self.notices:
                self.notices[fact.of].apply(fact)

    def of_key(self, key: str) -> Notice | None:
        """The notice of the event with this key; None if it was not raised."""
        return next((one for one in self.notices.values() if one.event.key == key), None)

    def raise_event(self, event: Event) -> bool:
        """Keep an event until it is sent, once, however many processes raise it; whether it is
        new. Raises `StoreError`."""
        self.refresh()
        pointed = False
        while self.of_key(event.key) is None and self._has_room(event):
            if not pointed:
                fs.ensure_directory(self._facts.path)
                add_pointer(self.experiment, event.key)
                pointed = True
            if self._put_next(NoticeRaised(event=event, time=event.time)):
                return True
            self.refresh()
        return False

    def _has_room(self, event: Event) -> bool:
        return event.trigger not in ("CUSTOM", "TASKLOG") or len(self.notices) < MOST

    def claim(self, notice: Notice, name: str, now: float) -> bool:
        """Make the sending of a notice to one recipient this process's own; False if it is not due,
        any more. Raises `StoreError`."""
        known = notice.sending.get(name, SendState())
        while self.is_readable and known.is_due(now):
            fact = NoticeClaimed(
                of=notice.raised.n,
                to=name,
                time=time.time(),
                host=here(),
                process=str(Identity.own()),
            )
            if self._put_next(fact):
                self.refresh()
                return True
            self.refresh()
            known = notice.sending.get(name, SendState())
        return False

    def answer(self, notice: Notice, name: str, answer: SendResult) -> None:
        """Record what came of a claim. Raises `StoreError`."""
        fact = NoticeAnswered(
            of=notice.raised.n,
            to=name,
            outcome=answer.outcome,
            detail=answer.detail,
            time=time.time(),
            host=here(),
        )
        self._facts.append(_plain(fact), self.count)
        self.refresh()

    def _put_next(self, fact: NoticeFact) -> bool:
        return self._facts.put_next(self.count + 1, _plain(fact))


def _plain(fact: NoticeFact) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(fact)
    del plain["n"]
    return plain
