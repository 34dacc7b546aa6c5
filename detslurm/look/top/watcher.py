"""Puts together what `detslurm top` shows: a request goes in, and text comes out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from detslurm.look.plot import Line
from detslurm.look.top import cells
from detslurm.look.top.cells import Rows
from detslurm.look.top.live_curves import LiveCurves, Metric, read_together
from detslurm.look.trial_curves import legend
from detslurm.sdk.client import Client
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.ordering import best_trials_first
from detslurm.sdk.experiments.snapshot import ExperimentSnapshot
from detslurm.sdk.experiments.store_reader import StoreReader
from detslurm.sdk.jobs.queues import Clock, Connect
from detslurm.sdk.trials.log_lines import LogLine, parse
from detslurm.sdk.trials.logs import Appended, tail
from detslurm.slurm import SlurmError
from detslurm.store import StoreError, TrialRow

Page = Literal["trials", "curves", "log", "checkpoints", "queue"]

PAGES: Final[tuple[Page, ...]] = ("trials", "curves", "log", "checkpoints", "queue")
MOST_ROWS: Final = 200
"""Of each table: what a terminal shows of thousands are the newest, or those that are searched."""

CURVES: Final = 5
LOG_LINES: Final = 200

_VALIDATION: Final = "validation"


@dataclass(frozen=True)
class Request:
    """A request to the watcher. Without an `experiment` it is about the newest, without a `trial`
    about the first that runs, or the best; the `metric` is the searcher's by default."""

    experiment: int | None = None
    trial: int | None = None
    page: Page = "trials"
    search: str = ""
    metric: Metric | None = None


@dataclass
class TopView:
    """The content of the screen: `hidden` experiments have no row, `metrics` begin with the
    searcher's, `queue_time` is in seconds since 1970, and `changed` is true if anything is new
    since the last look."""

    request: Request
    experiments: Rows = field(default_factory=dict)
    hidden: int = 0
    title: str = ""
    rows: Rows = field(default_factory=dict)
    curves: list[Line] = field(default_factory=list)
    legend: list[str] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    metric: Metric | None = None
    log: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    queue_time: float | None = None
    changed: bool = False


class Watcher:
    """Looks at a store and its queue, as often as asked; by default at the commands' store."""

    def __init__(
        self,
        root: Path | None = None,
        connect: Connect | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._client = Client(root, warn=lambda text: None, connect=connect)
        self._store = StoreReader(self._client, clock)
        self._curves: dict[int, LiveCurves] = {}
        self._log = _LogTail()
        self._incarnation = 0
        self._last: TopView | None = None

    def poll(self, request: Request) -> TopView:
        """Read the news and return all of it; an unreadable record becomes a problem."""
        view = TopView(request)
        with _noting(view.problems):
            view.changed = self._store.poll([request.experiment] if request.experiment else [])
            self._forget_replaced()
        view.problems += self._store.problems
        view.queue_time = self._store.queues.asked
        self._list(view)
        with _noting(view.problems):
            self._show(view)
        view.changed |= self._last is None or _content(self._last) != _content(view)
        self._last = view
        return view

    def _forget_replaced(self) -> None:
        if self._incarnation != self._store.incarnation:
            self._incarnation = self._store.incarnation
            self._curves.clear()
            self._log = _LogTail()

    def _list(self, view: TopView) -> None:
        found = cells.matching(self._store.rows(), view.request.search)
        view.experiments = cells.experiment_rows(islice(found, MOST_ROWS))
        view.hidden = sum(1 for _ in found)

    # -- pages -------------------------------------------------------------------------------------

    def _show(self, view: TopView) -> None:
        if view.request.page == "queue":
            jobs = self._client.list_jobs()
            view.title = f"{len(jobs)} jobs in the queue"
            view.rows = cells.queue_rows(jobs[:MOST_ROWS])
            return
        number = view.request.experiment
        if number is None or (view.experiments and str(number) not in view.experiments):
            number = int(next(iter(view.experiments), 0))
        if not number:
            return
        one = self._store.experiment(number)
        show: dict[Page, Callable[[TopView, ExperimentSnapshot], None]] = {
            "trials": self._show_trials,
            "curves": self._show_curves,
            "log": self._show_log,
            "checkpoints": self._show_checkpoints,
        }
        show[view.request.page](view, one)

    def _show_trials(self, view: TopView, one: ExperimentSnapshot) -> None:
        rows = sorted(one.trial_rows.values(), key=lambda row: row.id)
        view.rows = cells.trial_rows(one, _worth_showing(rows))
        more = f", {len(rows) - MOST_ROWS} more" if len(rows) > MOST_ROWS else ""
        message = f": {_message(one)}" if _message(one) else ""
        view.title = cells.one_line(f"experiment {one.directory.id} is {one.row.state}{message}")
        view.title += more

    def _show_curves(self, view: TopView, one: ExperimentSnapshot) -> None:
        row = one.row
        begun = [trial for trial in one.trial_rows.values() if trial.run_count]
        best = best_trials_first(begun, row)[:CURVES]
        read = [(trial, self._curves_of(one, trial.id)) for trial in best]
        read_together([curves for _, curves in read])
        searched = (_VALIDATION, row.metric or "")
        view.metrics = _in_order((curves.metrics for _, curves in read), searched)
        if not view.metrics:
            view.title = f"no trial of experiment {row.id} has reported a metric so far"
            return
        wanted = view.request.metric
        view.metric = metric = wanted if wanted in view.metrics else view.metrics[0]
        shown = [(row, line) for row, one in read if len((line := one.line(metric)).xs)]
        view.curves = [line for _, line in shown]
        texts = legend([row for row, _ in shown], view.curves, searched=metric == searched)
        view.legend = [cells.one_line(text) for text in texts]
        place, count = view.metrics.index(metric) + 1, len(view.metrics)
        more = f" ({place} of {count}, m: next)" if count > 1 else ""
        title = f"{' '.join(metric)} by steps{more}: experiment {row.id}, best trials"
        view.title = cells.one_line(title)

    def _curves_of(self, one: ExperimentSnapshot, trial: int) -> LiveCurves:
        if self._curves.keys() - one.trial_rows.keys():
            self._curves.clear()  # of another experiment
        return self._curves.setdefault(trial, LiveCurves(one.directory.trial(trial)))

    def _show_log(self, view: TopView, one: ExperimentSnapshot) -> None:
        trial = _trial_of(one, view.request.trial)
        if trial is None:
            view.title = f"no trial of experiment {one.directory.id} has begun"
            return
        view.title = f"log of trial {trial.id}, run {trial.run_count}"
        view.log = self._log.read(one, trial)

    def _show_checkpoints(self, view: TopView, one: ExperimentSnapshot) -> None:
        trial = _trial_of(one, view.request.trial)
        if trial is None:
            view.title = f"no trial of experiment {one.directory.id} has begun"
            return
        found = one.read_trial(trial.id).checkpoints
        view.title = f"checkpoints of trial {trial.id}"
        view.rows = cells.checkpoint_rows(found[-MOST_ROWS:], one.row.metric)


class _LogTail:
    """The last lines of the newest run of one trial."""

    def __init__(self) -> None:
        self._of: tuple[int, int] | None = None
        self._lines: deque[str] = deque(maxlen=LOG_LINES)

    def read(self, one: ExperimentSnapshot, trial: TrialRow) -> list[str]:
        if self._of != (trial.id, trial.run_count):
            place = one.directory.trial(trial.id)
            self._of = (trial.id, trial.run_count)
            self._new = Appended(place.log_path(trial.run_count))
            end = self._new.skip()
            self._lines.clear()
            self._lines.extend(map(_log_line, tail(place, LOG_LINES, end=end)))
        new = (parse(raw, trial.run_count) for raw in self._new.read())
        self._lines.extend(map(_log_line, new))
        return [*self._lines]


def _log_line(line: LogLine) -> str:
    """The time of day, the rank and the text; lines of 80 cells have no room for the date."""
    rank = "" if line.rank is None else f"{line.rank}| "
    clock = f"{line.time[11:19]} " if line.time else ""
    return clock + rank + cells.one_line(line.text.expandtabs())


def _trial_of(one: ExperimentSnapshot, wanted: int | None) -> TrialRow | None:
    """The trial that was asked for, or the first that runs, or the best."""
    begun = [row for row in one.trial_rows.values() if row.run_count]
    if wanted is not None and (found := [row for row in begun if row.id == wanted]):
        return found[0]
    running = [row for row in begun if row.state == "RUNNING"]
    best = best_trials_first(begun, one.row)
    return next(iter([*running, *best]), None)


def _worth_showing(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Running ones, then the newest, in the order of their ids."""
    first = sorted(rows, key=lambda row: (row.state == "RUNNING", row.run_count > 0, row.id))
    return sorted(first[-MOST_ROWS:], key=lambda row: row.id)


def _in_order(reported: Iterable[Iterable[Metric]], searched: Metric) -> list[Metric]:
    """The searcher's metric, those of validations, and the others."""
    found = {metric for metrics in reported for metric in metrics}
    return sorted(found, key=lambda one: (one != searched, one[0] != _VALIDATION, one))


def _message(one: ExperimentSnapshot) -> str | None:
    return one.message or one.view.reason


def _content(view: TopView) -> tuple[object, ...]:
    return (view.experiments, view.title, view.rows, view.curves, view.log, view.problems)


@contextmanager
def _noting(problems: list[str]) -> Iterator[None]:
    """A store or a queue that does not answer is shown, and the view goes on."""
    try:
        yield
    except (StoreError, SlurmError, LifecycleError, OSError) as error:
        problems.append(cells.one_line(str(error).replace("\n", " ")))
