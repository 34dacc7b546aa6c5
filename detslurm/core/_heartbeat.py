"""The sign of life of a script outside of jobs, and how it learns of its user's intents."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from detslurm.store import ExperimentDir, StoreError, TrialDir
from detslurm.store.records import Found, Intent, Lost, typed

logger = logging.getLogger("detslurm.core")

BEAT_SECONDS = 30.0


class Heartbeat:
    """Touches the run's records now and then, and reads the facts that were added meanwhile.

    Readers on other hosts know of the process nothing else. Should one of them have taken it for
    dead (a suspended laptop stops the beat), that is withdrawn here; where the user has killed or
    deleted the experiment, `on_kill` is called, once.
    """

    def __init__(
        self,
        experiment: ExperimentDir,
        trial: TrialDir,
        run: int,
        on_kill: Callable[[], None],
        seen: int,
    ) -> None:
        self._experiment, self._trial = experiment, trial
        self._records = trial.records_path(run)
        self._on_kill: Callable[[], None] | None = on_kill
        self._seen = seen  # earlier intents do not concern this run
        self._is_killed = False
        # A daemon: a script that ends without closing its context must not hang here. It then stops
        # to beat, and readers take it for lost, which it is.
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, after a last beat: a run that has ended in order was not lost."""
        # After the thread's end, so that two threads never read facts at once. A reader may have
        # declared the run lost since the last beat: that is withdrawn; a kill comes too late.
        self._stopping.set()
        self._thread.join()
        self._beat(lambda: None)

    def _run(self) -> None:
        while not self._stopping.wait(BEAT_SECONDS):  # close() ends the wait at once
            self._beat(self._on_kill)

    def _beat(self, on_kill: Callable[[], None] | None) -> None:
        try:
            os.utime(self._records)  # a file server uses its own time
        except OSError:
            pass  # a full quota, a server that is away: the next beat may succeed
        try:
            for fact in self._experiment.facts(self._seen):
                self._take_in(fact)
        except (StoreError, OSError) as err:
            logger.debug("the store can't be read now: %s", err)
        if self._is_killed and on_kill is not None:
            self._on_kill = None  # before the call: it may end this process, or start to
            on_kill()

    def _take_in(self, plain: Mapping[str, Any]) -> None:
        fact = typed(plain)
        if isinstance(fact, Lost) and self._trial.id in fact.trials:
            self._experiment.append(Found(trials=(self._trial.id,)), plain["n"])
        elif isinstance(fact, Intent):
            mine = fact.intent == "kill_trial" and fact.trial == self._trial.id
            self._is_killed |= mine or fact.intent in ("kill", "delete")
        self._seen = plain["n"]  # now: what failed above is read again
