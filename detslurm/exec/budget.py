"""The meter of a run: its use of the experiment's budget, and the pause when that is used.

Runs record their use in shares. The unrecorded shares of all possible runs together are small
beside the rest of the budget. So runs need not talk to each other, and looks become frequent only
towards the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from detslurm._base.quantities import amount
from detslurm.exec.intents import Intents
from detslurm.exec.signals import awake_clock
from detslurm.exec.text_log import print_message
from detslurm.slurm import Cluster, SlurmError, own_jobs
from detslurm.store import Spending
from detslurm.store.records import Intent

# Seconds of a run in a share: at least, and towards the end of the budget.
_USUAL, _LEAST = 60.0, 5.0
# All shares that are not recorded make at most this part of the whole, and of the rest.
_OF_WHOLE, _OF_REST = 50, 4


def share_seconds(budget: float, used: float, slots: int, at_once: int) -> float:
    """Seconds after which a run with so many slots records its share.

    `budget` and `used` are the slot-seconds of the experiment, `at_once` the most runs at once.
    """
    all_slots = max(slots * at_once, 1)
    usual = max(budget / _OF_WHOLE / all_slots, _USUAL)
    return max(min(usual, max(budget - used, 0.0) / _OF_REST / all_slots), _LEAST)


class Meter:
    """Counts the slot-seconds of a trial's runs, and pauses the experiment once all are used.

    `look` and `end` raise `StoreError` where the store can't be used now. `on_pause` gets the
    number of the fact that pauses, and the reason.
    """

    def __init__(
        self,
        intents: Intents,
        trial_id: int,
        cluster: Cluster,
        *,
        clock: Callable[[], float] = awake_clock,
        on_pause: Callable[[int, str], None] = lambda fact, reason: None,
    ) -> None:
        self._on_pause = on_pause
        self._intents, self._trial, self._cluster, self._clock = intents, trial_id, cluster, clock
        self._spending = Spending(intents.experiment)
        self._slots = int(intents.facts.created.slots or 0)
        self._since: float | None = None  # what the run used before is recorded
        self._run = 0

    def begin(self, run: int) -> None:
        """Count from now on: a run begins, or a budget is set while it goes on."""
        self._run, self._since = run, self._clock()

    def poll(self) -> None:
        """Record the share if it is due, and pause the experiment if its budget is used."""
        budget = self._slot_seconds
        if budget is None:
            self._since = None  # from here on nothing counts, until there is a budget again
            return
        if self._since is None:
            self._since = self._clock()
        used = self._spending.total()
        due = share_seconds(budget, used, self._slots, self._intents.facts.worker_limit)
        if self._own >= due * self._slots or used < budget <= used + self._own:
            used = self._record()
        if used >= budget:
            self._pause(used)

    def end(self) -> None:
        """The run is over: record the rest, and pause the experiment if its budget is used."""
        budget = self._slot_seconds
        if budget is None or self._since is None:
            return
        used = self._record()
        self._since = None
        if used >= budget:
            self._pause(used)

    def seconds_to_look(self) -> float:
        """After how many seconds the next share is due, or the budget used by this run alone."""
        budget = self._slot_seconds
        if budget is None or self._since is None:
            return _USUAL
        known = self._spending.known
        due = share_seconds(budget, known, self._slots, self._intents.facts.worker_limit)
        if known < budget:
            due = min(due, (budget - known) / self._slots)
        return max(due - (self._clock() - self._since), 1.0)

    @property
    def _slot_seconds(self) -> float | None:
        hours = self._intents.facts.budget
        return None if hours is None else hours * 3600

    @property
    def _own(self) -> float:
        return 0.0 if self._since is None else (self._clock() - self._since) * self._slots

    def _record(self) -> float:
        now, share = self._clock(), self._own
        used = self._spending.add(share, trial=self._trial, run=self._run, time=time.time())
        self._since = now
        return used

    def _pause(self, used: float) -> None:
        """Pause the experiment, once, however many of its runs find the budget used."""
        intents = self._intents
        while (budget := self._slot_seconds) is not None and used >= budget:
            if intents.cause is not None:
                return
            hours = f"{amount(used / 3600)} of {amount(budget / 3600)} slot-hours"
            reason = f"its budget is used ({hours})"
            pause = Intent(intent="pause", reason=reason)
            number = intents.facts.count + 1
            if intents.experiment.append_next(pause, number - 1):
                print_message(f"pausing the experiment: {reason}")
                self._stop_others()
                self._on_pause(number, reason)
            intents.refresh()

    def _stop_others(self) -> None:
        """Hold what waits and notify what runs; without this they find the pause themselves."""
        intents = self._intents
        job_ids = [job.job_id for job in intents.facts.jobs]
        try:
            refs = own_jobs(self._cluster, job_ids, str(intents.experiment.jobs))
            self._cluster.hold(refs)
            intents.refresh()
            if not intents.facts.desired.paused:
                # Activated before our hold: no command would release them now.
                self._cluster.release(refs)
            self._cluster.notify(refs)
        except SlurmError as error:
            print_message(f"the other jobs find the pause within a minute: {error.message}")
