"""A whole search in virtual time: the real state machine, workers that only count units.

Nothing is trained and nothing waits. A worker takes a trial, is busy for as long as the
curve takes, reports, and goes on, leaves or takes the next trial, as a real worker would.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from detslurm.searcher.curves import Curves, Synthetic
from detslurm.searcher.objectives import front
from detslurm.searcher.optuna.history import TrialHistory
from detslurm.searcher.preview import Row
from detslurm.searcher.search import Search
from detslurm.searcher.state import SearchTrial, State
from detslurm.searcher.trials import TrialPlan

Event = dict[str, Any]
Suggest = Callable[[TrialHistory, list[int]], list[Event]]
"""Answers a search that wants samples for these trials with its `sampled` events."""


class SimulatedTrial(msgspec.Struct):
    """The fate of one trial, numbered from 1; times are seconds of virtual time."""

    trial: int
    units: int = 0  # how far it came
    trained: int = 0  # its own training: a copy begins where its original was
    runs: int = 0
    metric: float | None = None
    start: float = 0.0
    end: float = 0.0
    outcome: str | None = None
    bracket: int = 0
    metrics: dict[str, float] = {}  # where the search compares by several values


class Simulation(msgspec.Struct):
    """The result of a simulated search."""

    searcher: str
    unit: str | None
    workers: int
    seconds: float  # from start to end
    busy: float  # part of the workers' time that was spent on trials
    total_units: int
    trials: int
    events: int
    best: SimulatedTrial | None  # where one metric decides
    rows: list[Row]
    each: list[SimulatedTrial]
    front: list[int] = []  # the best trials, where several do
    end_reason: str | None = None  # which rule of `searcher.stop` ended it

    def to_dict(self) -> dict[str, Any]:
        """The simulation as plain data, fit for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def simulate(
    config: Mapping[str, Any],
    workers: int,
    curves: Curves | None = None,
    *,
    units: int = 100,
    start_seconds: float = 0.0,
    suggest: Suggest | None = None,
) -> Simulation:
    """Run the search of a resolved configuration on `workers` virtual workers.

    `units` is how long trials train that are given no length, `start_seconds` what it costs
    a worker to take up a trial. `curves` are those of the searcher's metric. Further metrics have
    curves of their own, independent of it, and all constraints are kept. Where a search asks a
    sampler, `suggest` answers, such as `Bridge.suggest`; by default such samples are random,
    because the curves of this package don't depend on them.
    """
    return VirtualSearch(config, workers, curves, units, start_seconds, suggest).to_end()


class VirtualSearch:
    """One simulation on its way: a heap of who is busy until when. Arguments as for `simulate`."""

    def __init__(
        self,
        config: Mapping[str, Any],
        workers: int,
        curves: Curves | None = None,
        units: int = 100,
        start_seconds: float = 0.0,
        suggest: Suggest | None = None,
    ) -> None:
        self._search = search = Search(config)
        if search.name == "custom":
            raise ValueError("a custom search can't be simulated: its method lives elsewhere")
        if workers < 1:
            raise ValueError(f"a search needs at least one worker, not {workers}")
        self._curves = curves or Synthetic(search.smaller_is_better)
        self._units, self._start_seconds = units, start_seconds
        self._suggest = suggest or self._random_samples
        self._state: State = search.initial()
        self._now, self._busy, self._events = 0.0, 0.0, 0
        self._idle = [f"w{n}" for n in reversed(range(workers))]
        self._workers = workers
        self._ends: list[tuple[float, int, str, int]] = []  # when, order, worker, to units
        self._each: dict[int, SimulatedTrial] = {}
        others = enumerate(search.method.objectives.metrics[1:], 1)
        self._others = {o.name: Synthetic(o.smaller_is_better, salt=n) for n, o in others}

    def to_end(self) -> Simulation:
        """The result, once nothing is left to do."""
        for _ in self.steps():
            pass
        return self._sum_up()

    def steps(self) -> Iterator[SimulatedTrial]:
        """Yield a trial at each of its reports, in order of time; the search goes on between them.
        Its `units`, `metric` and `end` are those of the report, until the next report."""
        self._wake()
        while self._ends:
            self._now, _, worker, units = heapq.heappop(self._ends)
            trial = self._each[self._state.workers[worker]]
            self._reach(worker, units)
            yield trial
            self._wake()

    def _apply(self, *events: Event) -> None:
        self._search.apply(self._state, events)
        self._events += len(events)

    def _wake(self) -> None:
        """Give idle workers what waits."""
        while self._idle and self._state.next_in_queue() is not None:
            worker = self._idle.pop()
            self._apply({"e": "work_requested", "worker": worker})
            self._take(worker)

    def _take(self, worker: str) -> None:
        """A worker takes up its trial, or is idle."""
        index = self._state.assignment(worker)
        if index is None:
            self._idle.append(worker)
            return
        if unsampled := self._search.unsampled(self._state):
            self._apply(*self._suggest(self._search.history(self._state), unsampled))
        seen = self._each.setdefault(index, SimulatedTrial(index + 1, start=self._now))
        seen.runs += 1
        self._train(worker, index, self._state.trials[index].reached, self._start_seconds)

    def _random_samples(self, history: TrialHistory, wanted: Sequence[int]) -> list[Event]:
        plans = [(index, self._search.samples.plan(index)) for index in wanted]
        return [{"e": "sampled", "trial": i, "hparams": plan.hparams} for i, plan in plans]

    def _train(self, worker: str, index: int, start: int, seconds: float = 0.0) -> None:
        """Busy until the next length at which a report is awaited."""
        trial = self._state.trials[index]
        units = max(self._next(index, trial, start), start)
        seconds += self._curves.seconds(self._plan(index), index, start, units)
        self._busy += seconds
        self._each[index].trained += units - start
        heapq.heappush(self._ends, (self._now + seconds, self._events, worker, units))

    def _next(self, index: int, trial: SearchTrial, start: int) -> int:
        if trial.target_length is not None:
            return trial.target_length
        report = self._search.next_report(self._state, index)
        if self._search.name == "optuna" or report is None:
            return start + max(self._units - start, 0)
        return report

    def _reach(self, worker: str, units: int) -> None:
        """A trial has come to a length: it reports, and goes on or leaves."""
        index = self._state.workers[worker]
        trial, seen = self._state.trials[index], self._each[index]
        seen.units, seen.end = units, self._now
        seen.metric = self._curves.metric(self._plan(index), index, units)
        seen.metrics = self._metrics(index, units, seen.metric)
        key = "time" if self._search.judges_reports else "length"
        event = {"e": "validated", "trial": index, key: units, "metric": seen.metric}
        self._apply(event | ({"metrics": seen.metrics} if seen.metrics else {}))
        more = trial.target_length is not None or self._search.judges_reports
        if (
            more
            and not trial.stop
            and not trial.settled
            and self._next(index, trial, units) > units
        ):
            self._train(worker, index, units)
        else:
            self._leave(worker, index, trial)

    def _metrics(self, index: int, units: int, metric: float) -> dict[str, float]:
        """All that the search compares; empty where one metric alone decides."""
        objectives, plan = self._search.method.objectives, self._plan(index)
        if objectives.single:
            return {}
        kept = {name: bound.kept for name, bound in objectives.constraints.items()}
        curves = {name: one.metric(plan, index, units) for name, one in self._others.items()}
        return {**kept, objectives.metrics[0].name: metric, **curves}

    def _leave(self, worker: str, index: int, trial: SearchTrial) -> None:
        outcome = "out_of_ops" if trial.settled else "completed"
        left = {"e": "run_ended", "trial": index, "worker": worker, "outcome": outcome}
        checkpoint = f"{index}@{self._each[index].units}"
        self._apply({**left, "checkpoint": checkpoint}, {"e": "work_requested", "worker": worker})
        self._take(worker)

    def _plan(self, index: int) -> TrialPlan:
        return self._search.plan(self._state, index)

    def _sum_up(self) -> Simulation:
        each = sorted(self._each.values(), key=lambda t: t.trial)
        for seen in each:
            trial = self._state.trials[seen.trial - 1]
            seen.outcome, seen.bracket = trial.outcome, trial.bracket
        counts = Counter(t.units for t in each)
        objectives = self._search.method.objectives
        first, *others = objectives.metrics
        compared = [objectives.result({first.name: t.metric, **t.metrics}) for t in each]
        best = [each[place] for place in front(compared)]
        return Simulation(
            searcher=self._search.name,
            unit=self._search.unit or self._search.time_metric,
            workers=self._workers,
            seconds=self._now,
            busy=self._busy / (self._now * self._workers) if self._now else 0.0,
            total_units=sum(t.trained for t in each),
            trials=self._state.created,
            events=self._events,
            best=None if others or not best else best[0],
            rows=[Row(counts[n], n) for n in sorted(counts)],
            each=each,
            front=[t.trial for t in best] if others else [],
            end_reason=self._search.end_reason(self._state, range(1, self._state.created + 1)),
        )
