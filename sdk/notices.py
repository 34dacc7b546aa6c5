"""Notices as commands show and send them, by `detslurm.notices`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from detslurm.config.errors import ConfigErrors
from detslurm.config.schema.notices import AnyNotice, CommandNotice, MailNotice
from detslurm.notices.definitions import definitions, recipients, unknown_notice
from detslurm.notices.delivery import Flushed, flush, send
from detslurm.notices.event import Event
from detslurm.notices.log import NoticeLog, SendResult, SendState
from detslurm.notices.pointers import is_mine, was_tried_lately
from detslurm.notices.raising import raise_end
from detslurm.sdk.errors import LifecycleError
from detslurm.store import ExperimentDir, Store, StoreError

if TYPE_CHECKING:
    from detslurm.sdk.client import Client

AFTER_COMMAND = 4.0
"""Seconds that a command may take longer to send what waits."""
AT_ONCE = 60.0
_RECENT = 3600.0  # seconds since an end that a job may have failed to raise
_SHOWN = 20  # experiments whose notices are listed
_LOOKED_AT = 200  # experiments of a group's store among which these are


class NoticeRow(NamedTuple):
    """A notice on its way to one recipient: its event with the time in seconds since 1970; the
    state "waits", "being sent", "sent", "refused", or "unknown" if it may have been sent; the last
    answer, without secrets."""

    experiment: int
    trigger: str
    time: float
    to: str
    state: str
    detail: str


def definition_rows() -> list[dict[str, Any]]:
    """The user's definitions, without their secrets. Raises `ConfigErrors`."""
    return [
        {
            "name": name,
            "kind": one.__struct_config__.tag,
            "to": _shown(one),
            "triggers": list(one.triggers),
            "mode": one.mode,
        }
        for name, one in definitions().items()
    ]


def _shown(one: AnyNotice) -> str:
    match one:
        case MailNotice():
            return one.to
        case CommandNotice():
            return Path(one.command[0]).name
    from detslurm.notices.web import shown_host  # few commands need it

    return shown_host(one.url)


def recent_notices(store: Store) -> Iterator[NoticeRow]:
    """The notices of the newest experiments, newest first. Raises `ConfigErrors`, `StoreError`."""
    known = definitions()
    newest = (ExperimentDir(store, one) for one in store.newest_first())
    mine = (one for one in islice(newest, _LOOKED_AT) if is_mine(one.path))
    for experiment in islice(mine, _SHOWN):
        log = NoticeLog(experiment)
        log.refresh()
        for notice in reversed(log.notices.values()):
            event = notice.event
            names = [*notice.sending, *recipients(known, event, event.names)]
            for name in dict.fromkeys(names):
                state, detail = _state(notice.sending.get(name, SendState()))
                yield NoticeRow(experiment.id, event.trigger, event.time, name, state, detail)


def _state(sending: SendState) -> tuple[str, str]:
    if sending.claim is not None:
        return ("unknown", "its sender was killed") if sending.is_abandoned else ("being sent", "")
    if sending.answer is None:
        return "waits", ""
    outcome = sending.answer.outcome
    return "waits" if outcome == "later" else outcome, sending.answer.detail


def send_trial(name: str) -> SendResult:
    """Send a trial message by a definition. Raises `LifecycleError` if there is no such definition,
    `ConfigErrors` if the definitions are wrong."""
    known = definitions()
    if name not in known:
        raise LifecycleError(unknown_notice(name, known))
    return send(known[name], Event(trigger="TEST", key="test", time=time.time()))


def flush_waiting(client: Client, within: float = AT_ONCE) -> Flushed:
    """Send what waits, after a search for experiments that have lost their jobs, and for ends that
    a killed job has not raised. Raises `ConfigErrors` if the definitions are wrong, `StoreError` if
    the store can't be used."""
    known = definitions()
    if client.missing() or not known:
        return Flushed()
    # The list records the end of those without jobs.
    for one in client.list_experiments(states=["COMPLETED", "ERROR"]):
        if one.row.ended and time.time() - one.row.ended < _RECENT:
            raise_end(ExperimentDir(client.store, one.id))
    return flush(client.store, known, within=within)


def flush_after_command(store: Store) -> None:
    """Send what waits within a few seconds, in silence: `detslurm notify list` shows failures."""
    with contextlib.suppress(ConfigErrors, StoreError, OSError):
        if not was_tried_lately(store):
            flush(store, definitions(), within=AFTER_COMMAND)
