"""A job's notices: its runner raises and sends them while the code runs on.

A thread sends, and the runner waits a few seconds for it at the job's end. Notices that can't be
sent from here stay in the store for the user's next command.
"""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from detslurm.config.errors import ConfigErrors
from detslurm.config.run_config import RunWebhooks
from detslurm.exec.intents import Intents
from detslurm.exec.text_log import print_message
from detslurm.notices.definitions import definitions, has_user_file
from detslurm.notices.delivery import flush
from detslurm.notices.event import event_of
from detslurm.notices.log import MOST, NoticeLog
from detslurm.notices.raising import is_wanted, raise_end
from detslurm.store import StoreError, TrialDir, experiment_view, lines_of
from detslurm.store.errors import CorruptRecord
from detslurm.store.frame import unframe_all

AT_END: Final = 8.0
"""Seconds that a job's end may take longer for its notices."""
TO_RECORD: Final = 2.0
"""The last of these seconds, in which the answer is recorded: without a record of it a notice may
have been sent, and is not sent again."""
_AT_ONCE: Final = 60.0  # seconds that a thread may send while the code runs
_LONGEST: Final = 2000  # characters of an alert that are sent
_ALERT: Final = b'"alert"'


class JobNotices:
    """The notices of one experiment in one job; their failures never fail the job."""

    def __init__(self, intents: Intents, webhooks: RunWebhooks) -> None:
        self._intents, self._webhooks = intents, webhooks
        self._experiment = intents.experiment
        self._is_wanted: bool | None = None
        self._log, self._alerts = NoticeLog(self._experiment), 0
        self._ends: dict[tuple[int, int], int] = {}  # where the reading of a run's records ended
        self._thread: threading.Thread | None = None
        self._end_of_sending = math.inf
        self._is_new = False  # something was raised since the last thread began

    # -- events -----------------------------------------------------------------------

    def look(self, trial: TrialDir, run: int) -> None:
        """Raise the alerts that a run's code has recorded since the last look."""
        if not self._wanted():
            return
        for offset, alert in self._new_alerts(trial, run):
            self._alerts += 1
            if self._alerts > MOST:
                continue  # read, but code may raise an alert at each step
            fields = {name: _text(alert.get(name)) for name in ("title", "description", "level")}
            self._raise("CUSTOM", f"custom-{trial.id}-{run}-{offset}", trial=trial.id, **fields)
        self._send()  # also those raised while the last thread was sending

    def _new_alerts(self, trial: TrialDir, run: int) -> Iterator[tuple[int, dict[str, Any]]]:
        path, start = str(trial.records_path(run)), self._ends.get((trial.id, run), 0)
        try:
            for offset, line in lines_of(path, None, start, []):
                self._ends[trial.id, run] = offset + len(line) + 1
                records = _unframed(line) if _ALERT in line else []
                for place, record in enumerate(records):
                    if record.get("t") == "alert":
                        yield offset + place, record
        except StoreError as error:
            print_message(f"no notices of alerts for now: {error}")

    def on_policy(self, trial: TrialDir, run: int, policy: str, node: str) -> None:
        """A log policy has matched."""
        if self._wanted():
            key = f"tasklog-{trial.id}-{run}-{zlib.crc32(policy.encode())}"
            self._raise("TASKLOG", key, trial=trial.id, policy=policy, node=node)

    def on_pause(self, fact: int, reason: str) -> None:
        """The budget or the idle guard has paused the experiment, by this fact."""
        if self._wanted():
            self._raise("PAUSED", f"paused-{fact}", reason=reason)

    def on_experiment_over(self) -> None:
        """The last trial has ended."""
        self._is_new |= raise_end(self._experiment)

    def _wanted(self) -> bool:
        if self._is_wanted is None:
            try:
                self._is_wanted = is_wanted(self._experiment.store, self._webhooks)
            except StoreError:
                return False
        return self._is_wanted

    def _raise(self, trigger: str, key: str, **about: Any) -> None:
        view = experiment_view(self._experiment.id, self._intents.facts, ())
        event = event_of(view, trigger, key, names=self._webhooks.webhook_name, **about)
        try:
            self._is_new |= self._log.raise_event(event)
        except (StoreError, ValueError) as error:
            print_message(f"a notice is lost ({trigger}): {error}")
        self._send()

    # -- sending ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """The job ends: give what waits a few seconds to be sent."""
        end = time.monotonic() + AT_END
        self._end_of_sending = end - TO_RECORD
        self._wait(end)
        self._send()
        self._wait(end)

    def _wait(self, end: float) -> None:
        if self._thread is not None:
            self._thread.join(max(end - time.monotonic(), 0.0))

    def _send(self) -> None:
        if not self._is_new or (self._thread and self._thread.is_alive()):
            return
        self._is_new = False
        # A daemon: the runner ends without it if the file system hangs.
        self._thread = threading.Thread(target=self._flush, daemon=True)
        self._thread.start()

    def _flush(self) -> None:
        if not has_user_file() and not self._webhooks.webhook_name:
            return  # this node does not see the user's home
        try:
            known = definitions()
            if set(self._webhooks.webhook_name) - known.keys():
                return  # the user's command may see more
            flush(
                self._experiment.store,
                known,
                within=_AT_ONCE,
                until=lambda: self._end_of_sending,
                only=self._experiment.id,
            )
        except (ConfigErrors, StoreError, OSError) as error:
            print_message(f"notices wait for your next command: {error}")
        except Exception as error:  # whose message may have a URL
            print_message(f"notices wait for your next command: {type(error).__name__}")


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return str(value)[:_LONGEST].encode("utf-8", "replace").decode()  # JSON may have any code units


def _unframed(line: bytes) -> list[dict[str, Any]]:
    try:
        return list(unframe_all(line))
    except CorruptRecord:
        return []


notices_of = cache(JobNotices)
"""The notices of a job, always the same object."""
