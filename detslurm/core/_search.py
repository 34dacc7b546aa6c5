"""A trial's part in a search that decides while its trials run.

The chief commits what the trial reports to the search's log; the fold of the log with that report
is the decision. So no process is asked, and a report that is made twice (a restart, a reply
that got lost) changes nothing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from detslurm._base.info import ClusterInfo
from detslurm.config.run_config import RunConfig
from detslurm.core._lengths import completed_metric
from detslurm.core._metrics import plain
from detslurm.errors import MetricError
from detslurm.searcher import Search, SearchTrial, State
from detslurm.store import EventLog, ExperimentDir, StoreError, as_float, refuse_newer
from detslurm.store.retry import LONG, SHORT, with_retries
from detslurm.store.run_records import StartRecord

logger = logging.getLogger("detslurm.core")

# Seconds that a trial waits for the answer of a method that runs elsewhere before it makes room,
# which costs less than starting its program again; and seconds between two polls.
_TIMEOUT, _POLL_SECONDS = 20.0, 0.25


class TrialSearch:
    """The reports of one trial to its search, and the answers; for the chief alone."""

    # A fault of the store that passes must not cost a trained length.
    _pauses: Sequence[float] = LONG

    def __init__(
        self,
        experiment: ExperimentDir,
        config: RunConfig,
        index: int,
        *,
        fencing_token: int | None = None,
        must_leave: Callable[[], bool] = lambda: False,
    ) -> None:
        self._experiment = experiment
        self._search = Search(config.plain)
        self._index, self._fencing_token = index, fencing_token
        self._must_leave = must_leave
        self._length = config.searcher.length
        self._compared = config.searcher.compared

    @cached_property
    def _log(self) -> EventLog[State]:
        def read() -> EventLog[State]:
            log = EventLog(self._experiment.search, self._search)
            log.catch_up()
            return log

        return with_retries(read, _warn, self._pauses)

    def _catch_up(self) -> None:
        with_retries(self._log.catch_up, _warn, self._pauses)

    @property
    def _trial(self) -> SearchTrial:
        return self._log.state.trials[self._index]

    # -- lengths: `searcher.operations()` --------------------------------------------------------

    def next(self) -> int | None:
        """The absolute length to train to now; None when the search wants no more for now."""
        if self._custom:
            self._wait_for_answer()
        trial = self._trial
        if trial.status == "closed" or trial.stop or trial.settled or self._is_zombie:
            return None
        if trial.target_length is None:  # it may be stopped anywhere on its way to the full length
            return self._length if self._length and trial.reached < self._length else None
        return trial.target_length

    @property
    def _is_zombie(self) -> bool:
        """Whether another run of this trial has begun: the search ignores this run."""
        return self._fencing_token not in (None, self._trial.fencing_token)

    def metric(self, given: Any) -> Any:
        """A number, or numbers by name; for a custom search whatever JSON can express."""
        if not self._custom:
            return completed_metric(given, self._compared)
        value = plain({"": given}).get("")
        if value is None:
            raise ValueError("a custom search needs a metric: report_completed() got none")
        return value

    def completed(self, length: int, metric: Any) -> None:
        """Report the metric at a length; its consequence is what `next` returns."""
        values = metric if isinstance(metric, Mapping) else {self._compared[0]: metric}
        said = {"metric": metric} if self._custom else self._said(values)
        self._commit({"e": "validated", "length": length, **said})

    @property
    def _custom(self) -> bool:
        return self._search.name == "custom"

    def _wait_for_answer(self) -> None:
        """Wait a while for the answer of a method elsewhere to the last report."""
        deadline = time.monotonic() + _TIMEOUT
        while self._trial.settled and self._unanswered() and time.monotonic() < deadline:
            if self._trial.final or self._must_leave():
                return
            time.sleep(_POLL_SECONDS)  # another node's file: there is nothing to wait on
            self._catch_up()

    def _unanswered(self) -> bool:
        dialogue = self._log.state.dialogue
        request = self._trial.request_id
        return dialogue is not None and any(
            event.get("request_id") == request for event in dialogue.events
        )

    # -- reports: `train.report_validation_metrics()` --------------------------------------------

    def reported(self, steps: int, metrics: Mapping[str, Any]) -> bool:
        """Take in validation metrics; True once the search wants this trial to stop.

        Raises `MetricError` for a searcher metric or a time metric that is missing or no number.
        """
        self._pauses = SHORT
        try:
            self._judge(steps, metrics)
            return self._trial.stop
        except StoreError as err:  # training goes on; the next report is as good
            logger.warning("the search gets no report of step %s: %s", steps, err)
            return False
        finally:
            self._pauses = LONG

    @property
    def is_final(self) -> bool:
        """Whether the trial has trained to the full length."""
        return self._trial.final

    def _judge(self, steps: int, metrics: Mapping[str, Any]) -> None:
        """Commit the report if it can change anything."""
        if self._custom or self._search.stop_rule is not None:
            self._catch_up()  # its method, or another trial, may have ended the search meanwhile
        due = self._search.next_report(self._log.state, self._index)
        if due is not None and self._report(steps, metrics, due):
            return
        # The search judges by lengths, or later; or has judged.
        metric = metrics.get(self._search.metric)
        if self._search.may_end(self._log.state, self._index, metric):
            self._commit({"e": "reported", "metric": metric})

    def _report(self, steps: int, metrics: Mapping[str, Any], due: int) -> bool:
        """Commit a report that is due; False for one that comes early."""
        try:
            values, now = self._parse(steps, metrics)
        except MetricError:
            if self._trial.target_length is None:
                raise
            return False  # code of the older generation reports by its operations
        if now >= due:
            self._commit({"e": "validated", "time": now, **self._said(values)})
        return now >= due

    def _parse(self, steps: int, metrics: Mapping[str, Any]) -> tuple[dict[str, float], float]:
        values = {name: _number("searcher metric", name, metrics) for name in self._compared}
        name = self._search.time_metric
        if name is None or (name == "batches" and name not in metrics):
            return values, steps
        now = _number("time metric", name, metrics)
        if not math.isfinite(now):
            raise MetricError(f"error parsing time metric ({name}): it is {now}")
        return values, now

    def _said(self, values: Mapping[str, float]) -> dict[str, Any]:
        """Their form in an event: the first is the metric; NaN is null, as in any JSON."""
        said = {name: None if math.isnan(value) else value for name, value in values.items()}
        several = {"metrics": said} if len(said) > 1 else {}
        return {"metric": said[self._compared[0]], **several}

    def _commit(self, report: Mapping[str, Any]) -> None:
        report_event = {**report, "trial": self._index}
        if self._fencing_token is not None:
            report_event["fencing_token"] = self._fencing_token
        event = self._search.judged(self._log.state, report_event)
        with_retries(lambda: self._log.commit([event]), _warn, self._pauses)


def search_of(
    experiment: ExperimentDir, info: ClusterInfo, *, must_leave: Callable[[], bool]
) -> TrialSearch:
    """The part that this process's trial has in its experiment's search."""
    trial = experiment.trial(info.trial.trial_id)
    refuse_newer(experiment.path, experiment.created().format)  # the code's detslurm may be older
    start = trial.start(info.trial._trial_run_id, fresh=True) or StartRecord()
    return TrialSearch(
        experiment,
        RunConfig.of(info.trial._config),
        start.index,
        fencing_token=start.fencing_token,
        must_leave=must_leave,
    )


def _number(what: str, name: str, metrics: Mapping[str, Any]) -> float:
    value = metrics.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return as_float(value)
    found = f"it is {value!r}" if name in metrics else f"there is only {', '.join(metrics) or '-'}"
    raise MetricError(f"error parsing {what} ({name}) from validation metrics: {found}")


def _warn(error: Exception) -> None:
    logger.warning("the search can't be updated now, trying again: %s", error)
