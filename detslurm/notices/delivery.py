"""Send what waits: claim, send, record the answer, and forget what is settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from detslurm.config.schema.notices import AnyNotice, CommandNotice, MailNotice
from detslurm.notices.definitions import recipients, secrets_of_definition
from detslurm.notices.event import Event
from detslurm.notices.gate import SendGate, bounded
from detslurm.notices.log import (
    Notice,
    NoticeLog,
    SendResult,
    SendState,
    is_in_job,
    is_stale,
    remove_pointer,
    waiting,
)
from detslurm.store import Store

ATTEMPT = 10.0
"""Seconds that one attempt may take."""
_OLD = 7 * 86400.0

Send = Callable[[AnyNotice, Event, float], SendResult]


def send(definition: AnyNotice, event: Event, seconds: float = ATTEMPT) -> SendResult:
    """Send an event by one definition within so many seconds; no secret is in the answer."""
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
    except Exception as error:  # a message of it may have a URL
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
    only: int | None = None,
    send: Send = send,
) -> Flushed:
    """Send what waits for the definitions in `known`, within so many seconds. A job leaves mail to
    the login node.

    Args:
        store: The store.
        known: The user's definitions.
        within: The seconds for all of it.
        only: The one experiment whose notices are sent; by default those of all.
        send: Sends one event.

    Raises:
        StoreError: If the store can't be used.
    """
    flushing = _Flushing(known, time.monotonic() + within, is_in_job(), send, Flushed())
    for experiment, keys in waiting(store, only):
        if flushing.seconds_left <= 0:
            break
        log = NoticeLog(experiment)
        log.refresh()
        for key in keys:
            notice = log.of_key(key)
            if flushing.deliver(log, notice) if notice else is_stale(experiment, key):
                remove_pointer(experiment, key)
    return flushing.done


@dataclass
class _Flushing:
    known: Mapping[str, AnyNotice]
    deadline: float
    in_job: bool
    send: Send
    done: Flushed

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def deliver(self, log: NoticeLog, notice: Notice) -> bool:
        """Send a notice to those who have not got it; whether it is settled."""
        event, settled = notice.event, True
        for name in recipients(self.known, event, event.names):
            definition = self.known[name]
            state = notice.sending.get(name, SendState())
            if state.is_abandoned:
                log.answer(notice, name, SendResult("unknown", "its sender was killed"))
            elif definition.from_jobs or not self.in_job:
                self._attempt(log, notice, name, definition)
            settled &= notice.sending.get(name, SendState()).is_settled
        return settled or time.time() - event.time > _OLD

    def _attempt(self, log: NoticeLog, notice: Notice, name: str, definition: AnyNotice) -> None:
        left = min(self.seconds_left, ATTEMPT)
        if left <= 0 or not log.claim(notice, name, time.time()):
            return
        answer = self.send(definition, notice.event, left)
        log.answer(notice, name, answer)
        setattr(self.done, answer.outcome, getattr(self.done, answer.outcome) + 1)
