"""The state of a search: its trials, who works on what, what waits, and the method's own part.

The state is what the fold over the log makes; it is plain data, so that it can be dumped and
loaded in the middle without changing anything that follows. The moves that methods are made of
(create, enqueue, assign, release, close) are here, so that the counts can't drift apart.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from detslurm.searcher.events import KnownResults
from detslurm.searcher.objectives import Result
from detslurm.searcher.optuna.history import KnownTrial, TrialHistory

Status = Literal["waiting", "assigned", "paused", "closed"]

RETURNED, PROMOTED, CREATED = 0, 1, 2
"""The order of the queue: trials that a worker gave back, promoted ones, new ones."""


class SearchTrial(msgspec.Struct, array_like=True, gc=False):
    """One trial; it is named by its index in order of creation."""

    status: Status = "paused"
    worker: str | None = None
    target_length: int | None = None  # absolute length to train to; None: as long as it likes
    reached: int = 0
    resumed_at: int = 0  # the steps when its present run began
    fencing_token: int = 0  # counts its runs: what comes from an earlier run is too late
    lost: int = 0  # runs whose job vanished
    stop: bool = False  # it is to stop
    final: bool = False  # nothing more will be asked of it: it closes when it leaves
    bracket: int = 0
    rung: int = 0
    rung_results: list[tuple[float, int]] = []  # its place in each rung it has passed
    metric: float | None = None  # as last reported, with the user's sign
    source: int | None = None  # the trial whose checkpoint it starts from
    source_checkpoint: str | None = None
    checkpoint: str | None = None  # what its last run left
    hparams: dict[str, Any] | None = None  # if they are not the stream's next sample
    request_id: str | None = None
    outcome: str | None = None  # how it closed
    incarnation: str | None = None  # which process of its worker has it
    closing: bool = False  # nothing more will be asked of it than its target length
    modelled: bool = False  # a model of the results chooses its hyperparameters, once it is taken
    metrics: dict[str, Any] = {}  # as last reported, where the search compares by several values

    @property
    def settled(self) -> bool:
        """It has reported all that it was asked for."""
        return self.final or (self.target_length is not None and self.reached >= self.target_length)

    @property
    def closed_with_result(self) -> bool:
        """It is closed, and was not refused, canceled or in error."""
        return self.outcome in ("completed", "stopped")


class Rung(msgspec.Struct, array_like=True, gc=False):
    """One rung: the results at `units`, best first, and how many are still on their way.

    Where the search compares by several values, the score is the rank, and `compared` has what is
    compared of each trial.
    """

    units: int
    results: list[tuple[float, int, int]] = []  # score, order among equals, trial
    seen: int = 0
    outstanding: int = 0
    compared: dict[int, Result] = {}


class Bracket(msgspec.Struct, array_like=True, gc=False):
    """One search by halving: adaptive searches have several, each with its share of trials."""

    max_trials: int
    rungs: list[Rung]
    created: int = 0
    invalid: int = 0
    lowest: int = 0  # the lowest rung whose paused trials haven't been let go yet

    @property
    def outstanding(self) -> int:
        """How many trials are on their way to one of its rungs."""
        return sum(rung.outstanding for rung in self.rungs)


class Dialogue(msgspec.Struct):
    """The exchange between the search and a custom method: numbered events, and its answers."""

    events: list[dict[str, Any]] = []  # not answered yet
    last: int = 0
    answered: int = 0
    trials: dict[str, int] = {}  # by request id
    progress: float = 0.0
    verdict: str | None = None  # of the method's shutdown


class Leader(msgspec.Struct, gc=False, frozen=True):
    """The best report for the rule that ends the search, and how many trials had closed then."""

    trial: int
    metric: float  # with the user's sign
    closed: int


class State(msgspec.Struct, gc=False):
    """The whole search after some number of events.

    Its methods name a trial by its `index` in order of creation, a `worker` by its job's reference.
    """

    trials: list[SearchTrial] = []
    queue: list[tuple[int, int, int]] = []  # heap of rank, ticket, trial
    next_ticket: int = 0
    workers: dict[str, int] = {}
    requests: dict[str, int] = {}  # how often each worker has asked for work, saying after how many
    open: int = 0
    invalid: int = 0
    failures: int = 0
    cancels: int = 0
    done: bool = False
    metric_seen: bool = False  # a trial has reported the metric
    abandoned: bool = False  # none will: the search has given up
    brackets: list[Bracket] = []
    round: int = 0
    members: list[int] = []
    dialogue: Dialogue | None = None
    history: TrialHistory | None = None
    optuna: str | None = None  # the version that drew the latest sample
    leader: Leader | None = None  # with `searcher.stop` alone
    ended: bool = False  # by the rule of `searcher.stop`
    known: KnownResults | None = None  # of earlier experiments

    @property
    def created(self) -> int:
        """How many trials there are."""
        return len(self.trials)

    @property
    def closed_with_results(self) -> int:
        """How many trials are closed that were not refused, canceled or in error."""
        return self.created - self.open - self.failures - self.cancels - self.invalid

    @property
    def begins_nothing(self) -> bool:
        """Whether it only waits for the trials at work to leave."""
        return self.abandoned or self.ended

    @property
    def earlier_results(self) -> list[KnownTrial]:
        """The results of earlier experiments that the search began with."""
        return [] if self.known is None else self.known.results

    @property
    def runnable_soon(self) -> bool:
        """Whether something waits or runs: more work may come of it."""
        return bool(self.workers) or self.next_in_queue() is not None

    @property
    def verdict(self) -> str | None:
        """How the search ended: completed, error or canceled; None before its end."""
        if not self.done:
            return None
        if self.dialogue and self.dialogue.verdict:
            return self.dialogue.verdict
        counted = self.created - self.invalid
        nothing_valid = not counted and self.created > 1
        if self.abandoned or nothing_valid or (counted and self.failures >= counted):
            return "error"
        return "canceled" if counted and self.cancels >= counted else "completed"

    def assignment(self, worker: str) -> int | None:
        """Return the trial that a worker has, or None."""
        return self.workers.get(worker)

    def request_event(self, worker: str, incarnation: str) -> dict[str, Any]:
        """Return the event by which the process `incarnation` of a worker asks for work."""
        after = self.requests.get(worker, 0)
        return {"e": "work_requested", "worker": worker, "incarnation": incarnation, "after": after}

    def assigned(self) -> dict[str, int]:
        """Return every worker that has a trial, and which."""
        return dict(self.workers)

    def run_ended_events(self, gone: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the events that take their trials from workers that are `gone`, each with the
        outcome of its run."""
        return [
            {
                "e": "run_ended",
                "trial": i,
                "worker": ref,
                "outcome": gone[ref],
                "fencing_token": self.trials[i].fencing_token,
            }
            for ref, i in self.workers.items()
            if ref in gone
        ]

    def waiting(self) -> list[int]:
        """Return the trials that wait for a worker, the first in the queue first."""
        return [i for _, _, i in sorted(self.queue) if self.trials[i].status == "waiting"]

    def next_in_queue(self) -> int | None:
        """Return the trial that the next worker gets, or None."""
        while self.queue and self.trials[self.queue[0][2]].status != "waiting":
            heapq.heappop(self.queue)
        return self.queue[0][2] if self.queue else None

    def create(self, trial: SearchTrial) -> int:
        """Add a `trial`, paused, and return its index."""
        self.trials.append(trial)
        self.open += 1
        return len(self.trials) - 1

    def enqueue(self, index: int, rank: int) -> None:
        """Put a paused trial into the queue by its `rank`: RETURNED, PROMOTED or CREATED."""
        self.trials[index].status = "waiting"
        heapq.heappush(self.queue, (rank, self.next_ticket, index))
        self.next_ticket += 1

    def assign(
        self, worker: str, incarnation: str | None = None, after: int | None = None
    ) -> int | None:
        """Give a worker the first trial in the queue, unless it has a trial; return its trial, or
        None if no trial waits.

        A worker that has a trial and asks in another `incarnation` (None by default) was restarted:
        later reports of the process before it come from a run that counts no more. `after` is how
        often it had asked: another number changes nothing; None, the default, always counts.
        """
        if after is not None:
            if after != self.requests.get(worker, 0):
                return self.assignment(worker)
            self.requests[worker] = after + 1
        if worker in self.workers:
            index = self.workers[worker]
            if self.trials[index].incarnation != incarnation:
                self._begin(index, worker, incarnation)
            return index
        first = self.next_in_queue()
        if first is not None:
            heapq.heappop(self.queue)
            self._begin(first, worker, incarnation)
            self.workers[worker] = first
        return first

    def _begin(self, index: int, worker: str, incarnation: str | None) -> None:
        trial = self.trials[index]
        trial.status, trial.worker, trial.incarnation = "assigned", worker, incarnation
        trial.fencing_token, trial.resumed_at = trial.fencing_token + 1, trial.reached

    def release(self, index: int) -> None:
        """Take a trial from its worker; it is paused."""
        trial = self.trials[index]
        if trial.worker is not None:
            del self.workers[trial.worker]
        trial.status, trial.worker = "paused", None

    def close(self, index: int, outcome: str) -> None:
        """End a trial that no worker has, with an `outcome` such as "completed"."""
        trial = self.trials[index]
        trial.status, trial.outcome = "closed", outcome
        self.open -= 1
        self.failures += outcome == "error"
        self.cancels += outcome == "canceled"
        self.invalid += outcome == "invalid_hp"

    def reopen(self, index: int) -> None:
        """Take back the end of a trial that was completed; it is paused."""
        trial = self.trials[index]
        trial.status, trial.outcome = "paused", None
        trial.stop = trial.final = trial.closing = False
        self.open += 1

    def needed_checkpoints(self) -> set[str]:
        """Return the checkpoints that the search may still let a trial start from; a custom method
        may name an ended trial, too."""
        if self.done:
            return set()
        trials = [t for t in self.trials if t.status != "closed" or self.dialogue is not None]
        sources = [self.trials[t.source].checkpoint for t in trials if t.source is not None]
        own = [uuid for t in trials for uuid in (t.checkpoint, t.source_checkpoint)]
        return {uuid for uuid in (*own, *sources) if uuid is not None}

    def abandon(self) -> None:
        """No trial can be judged: those at work are stopped, and nothing begins any more."""
        self.abandoned = True
        self._stop_all("error")

    def end(self) -> None:
        """The search has found enough: those at work are stopped, and nothing begins any more."""
        self.ended = True
        self._stop_all("completed")

    def _stop_all(self, outcome: str) -> None:
        for index, trial in enumerate(self.trials):
            if trial.status == "assigned":
                trial.stop = True
            elif trial.status != "closed":
                self.close(index, outcome)

    def finish(self, index: int) -> None:
        """Ask nothing more of a trial: it closes now, or when its worker leaves it."""
        trial = self.trials[index]
        trial.final = True
        if trial.status in ("paused", "waiting"):
            self.close(index, "completed")
