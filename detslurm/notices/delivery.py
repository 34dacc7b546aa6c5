"""Send waiting notices: claim, send, record the answer, and remove the pointer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from detslurm.config.schema.notices import AnyNotice, CommandNotice, MailNotice
from detslurm.notices.definitions import has_user_file, recipients, secrets_of_definition
from detslurm.notices.event import Event
from detslurm.notices.gate import SendGate, bounded
from detslurm.notices.log import Notice, NoticeLog, SendResult, SendState
from detslurm.notices.pointers import (
    is_in_job,
    is_stale,
    mark_failure,
    remove_pointer,
    waiting,
)
from detslurm.store import Store

ATTEMPT = 6.0
"""Seconds that one attempt may take."""
LEAST = 2.0
"""With less time left no attempt begins: a server that answers late would leave it unknown."""
_OLD = 7 * 86400.0

Send = Callable[[AnyNotice, Event, float], SendResult]


def send(definition: AnyNotice, event: Event, seconds: float = ATTEMPT) -> SendResult:
    """Send an event by one definition within some seconds; the answer has no secret."""
    answer = bounded(partial(_send, definition, event, timeout=seconds), seconds)
    detail = answer.detail
    for secret in secrets_of_definition(definition):
        detail = detail.replace(secret, "***")
    return SendResult(answer.outcome, detail)


def _send(definition: AnyNotice, event: Event, gate: SendGate, *, timeout: float) -> SendResult:
    try:
        if isinstance(definition, MailNotice | CommandNotice):
            from detslurm.notices import programs  # each sender's imports are its own

            if isinstance(definition, MailNotice):
                return programs.mail(definition, event, gate, timeout)
            return programs.command(definition, event, gate, timeout)
        from detslurm.notices.web import post

        return post(definition, event, gate, timeout)
    except Exception as error:  # its message may have a URL
        return SendResult("unknown", f"it failed with {type(error).__name__}")


@dataclass
class Flushed:
    """How many notices were sent, were refused, wait for another try, or may have been sent."""

    sent: int = 0
    refused: int = 0
    later: int = 0
    unknown: int = 0


def flush(
    store: Store,
    known: Mapping[str, AnyNotice],
    *,
    within: float,
    until: Callable[[], float] = lambda: math.inf,
    only: int | None = None,
    send: Send = send,
) -> Flushed:
    """Send what waits for the definitions in `known`, `within` some seconds, of one experiment
    alone if `only` is given. A job leaves mail to the login node. After a failure nothing more is
    sent by that definition. `until` gives the time, by the monotonic clock, when all attempts have
    to be over, if that is earlier; it may change meanwhile. Raises `StoreError` if the store can't
    be used."""
    end, in_job = time.monotonic() + within, is_in_job()
    flushing = _Flushing(known, lambda: min(end, until()) - time.monotonic(), in_job, send)
    for experiment, keys in waiting(store, only):
        if flushing.seconds_left() < LEAST:
            break
        log = NoticeLog(experiment)
        log.refresh()
        for key in keys:
            notice = log.of_key(key)
            if flushing.deliver(log, notice) if notice else is_stale(experiment, key):
                remove_pointer(experiment, key)
    if flushing.failed and not in_job:
        mark_failure(store)
    return flushing.done


@dataclass
class _Flushing:
    known: Mapping[str, AnyNotice]
    seconds_left: Callable[[], float]
    in_job: bool
    send: Send
    done: Flushed = field(default_factory=Flushed)
    failed: set[str] = field(default_factory=set)

    def deliver(self, log: NoticeLog, notice: Notice) -> bool:
        """Send a notice by all definitions that have not sent it; whether it is settled."""
        event, settled = notice.event, True
        for name in recipients(self.known, event, event.names):
            definition = self.known[name]
            state = notice.sending.get(name, SendState())
            if state.is_abandoned:
                log.answer(notice, name, SendResult("unknown", "its sender was killed"))
            elif definition.from_jobs or not self.in_job:
                self._attempt(log, notice, name, definition)
            settled &= notice.sending.get(name, SendState()).is_settled
        # A node may not see the user's file, and so not all that want the notice.
        sees_all = has_user_file() if self.in_job else bool(self.known)
        return (settled and sees_all) or time.time() - event.time > _OLD

    def _attempt(self, log: NoticeLog, notice: Notice, name: str, definition: AnyNotice) -> None:
        left = min(self.seconds_left(), ATTEMPT)
        if name in self.failed or left < LEAST or not log.claim(notice, name, time.time()):
            return
        answer = self.send(definition, notice.event, left)
        log.answer(notice, name, answer)
        setattr(self.done, answer.outcome, getattr(self.done, answer.outcome) + 1)
        if answer.outcome in ("later", "unknown"):
            self.failed.add(name)
