"""A trial inside a search: what it reports decides, and the decision reaches it."""

from __future__ import annotations

import errno
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from detslurm import core
from detslurm.config import load_experiment
from detslurm.core import DistributedContext, PreemptMode, Unit, _search
from detslurm.errors import MetricError
from detslurm.searcher import Search, State
from detslurm.store import EventLog, read_records, trial_metrics
from tests.store.faults import failing

from .jobs import Job, enter
from .ranks import on_ranks

PROMOTION = {
    "name": "async_halving",
    "metric": "loss",
    "smaller_is_better": True,
    "max_length": {"batches": 9},
    "num_rungs": 2,
    "divisor": 3,
    "max_trials": 3,
    "max_concurrent_trials": 3,
}


@dataclass
class Searched:
    """This process as the chief of trial 0 of a search, and the search's log beside it."""

    job: Job
    log: EventLog[State]

    def others(self, *metrics: float, length: int = 3) -> None:
        """Trials 1, 2 ... report, as their own chiefs would."""
        for index, metric in enumerate(metrics, start=1):
            self.log.commit([{"e": "work_requested", "worker": f"9_{index}"}])
            event = {"e": "validated", "trial": index, "length": length, "metric": metric}
            self.log.commit([event])

    @property
    def state(self) -> State:
        return self.log.catch_up()


Begin = Callable[..., Searched]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Begin a search with some searcher section."""

    def begin(searcher: dict[str, Any], **more: Any) -> Searched:
        config = {"searcher": searcher, "hyperparameters": {}, **more}
        job = enter(tmp_path / "root", monkeypatch, config, search=True)
        log = EventLog(job.experiment.search, Search(config))
        log.commit([{"e": "work_requested", "worker": "1"}])
        return Searched(job, log)

    return begin


def kinds(job: Job) -> list[str]:
    records = read_records(job.trial.records_path(1)).records
    return [record["t"] for record in records if record["t"] != "spent"]


class TestLengths:
    """searcher.operations() over the search's log."""

    def test_a_trial_that_is_not_promoted_runs_out_of_operations(self, begin: Begin) -> None:
        """Its report is in the log, it says that it leaves for want of work, and may come back."""
        here = begin(PROMOTION)
        with core.init() as context:
            assert context.searcher.get_configured_units() is Unit.BATCHES
            lengths = []
            for op in context.searcher.operations():
                lengths.append(op.length)
                op.report_progress(1)
                op.report_completed(0.5)
        assert lengths == [3]
        trial = here.state.trials[0]
        assert (trial.reached, trial.metric) == (3, 0.5)
        assert kinds(here.job) == ["progress", "completed", "out_of_ops"]

    def test_a_promoted_trial_goes_on_in_the_same_process(self, begin: Begin) -> None:
        """The fold of the log with its own report says so, without asking anybody."""
        here = begin(PROMOTION)
        with core.init() as context:
            lengths = []
            for op in context.searcher.operations():
                if op.length == 3:
                    here.others(0.7, 0.8)
                lengths.append(op.length)
                op.report_completed(0.5 / op.length)
        assert lengths == [3, 9]
        assert here.state.trials[0].final

    def test_a_restart_is_asked_only_for_what_is_left(self, begin: Begin) -> None:
        """What was reported before a crash is not asked again, and reports nothing twice."""
        here = begin(PROMOTION)
        with core.init() as context:
            next(context.searcher.operations()).report_completed(0.5)
        with core.init() as context:
            assert list(context.searcher.operations()) == []
        here.others(0.7, 0.8)  # now it is promoted
        with core.init() as context:
            assert next(context.searcher.operations()).length == 9
        assert len(here.state.brackets[0].rungs[0].results) == 3

    def test_a_process_that_outlived_its_run_is_not_heard(self, begin: Begin) -> None:
        """Its records count no more, so neither does its report; nothing more is asked of it."""
        here = begin(PROMOTION)
        with core.init() as context:
            operations = context.searcher.operations()
            op = next(operations)
            here.log.commit([{"e": "work_requested", "worker": "1", "incarnation": "another"}])
            op.report_completed(0.5)
            assert list(operations) == []
        assert here.state.trials[0].reached == 0

    def test_a_hiccup_of_the_store_costs_no_length(
        self, begin: Begin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first operation reads the search's log, and reads it again where that fails."""
        monkeypatch.setattr(_search, "SHORT", (0.0, 0.0))
        begin(PROMOTION)
        with core.init() as context, failing("open", errno.EIO, times=2):  # the cache, then the log
            assert next(context.searcher.operations()).length == 3

    def test_the_worst_metric_has_no_number(self, begin: Begin) -> None:
        """NaN is taken, and is worse than everything; text is refused where it is reported."""
        here = begin(PROMOTION)
        with core.init() as context:
            op = next(context.searcher.operations())
            with pytest.raises(ValueError):
                op.report_completed("good")
            op.report_completed(math.nan)
        here.others(7.0, 8.0)
        assert [index for _, _, index in here.state.brackets[0].rungs[0].results] == [1, 2, 0]

    def test_all_ranks_follow_the_chief(self, begin: Begin) -> None:
        """Workers, who never read the log, get the chief's lengths and its end."""
        here = begin(PROMOTION)
        here.others(0.7, 0.8)

        def body(dist: DistributedContext) -> list[int]:
            with core.init(distributed=dist) as context:
                lengths = []
                for op in context.searcher.operations():
                    lengths.append(op.length)
                    if op.is_chief:
                        op.report_completed(0.5)
                return lengths

        assert on_ranks(3, body) == [[3, 9]] * 3
        reports = list(here.job.experiment.search.glob("*.json"))
        assert len(reports) == 1 + 4 + 2

    def test_the_searches_that_judge_nothing_keep_no_log(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A random search's trial gets its full length and writes no event."""
        searcher = {"name": "random", "metric": "loss", "max_trials": 2, "max_length": 5}
        job = enter(tmp_path / "root", monkeypatch, {"searcher": searcher})
        with core.init() as context:
            assert context.searcher.get_configured_units() is None
            for op in context.searcher.operations():
                assert op.length == 5
                op.report_completed(0.5)
        assert not job.experiment.search.exists()


class TestCustom:
    """A trial whose search method runs somewhere else."""

    CUSTOM: ClassVar = {"name": "custom", "metric": "loss", "unit": "epochs"}
    REQUEST = "00000000-0000-4000-8000-000000000001"

    @pytest.fixture
    def here(self, begin: Begin) -> Searched:
        """A search whose method has created one trial and asked it for two epochs."""
        found = begin(self.CUSTOM)
        self.say(found, {"op": "create", "hparams": {}}, {"op": "validate_after", "length": 2})
        found.log.commit([{"e": "work_requested", "worker": "1"}])
        return found

    def say(self, here: Searched, *operations: dict[str, Any]) -> None:
        """Answer all events so far."""
        dialogue = here.state.dialogue
        assert dialogue is not None
        ops = [{"request_id": self.REQUEST, **operation} for operation in operations]
        here.log.commit([{"e": "operations", "after": dialogue.last, "ops": ops}])

    def test_the_next_operation_is_waited_for(self, here: Searched) -> None:
        """The method's answer comes while the program is still there, which goes on."""
        with core.init() as context:
            assert context.searcher.get_configured_units() is Unit.EPOCHS
            operations = context.searcher.operations()
            first = next(operations)
            first.report_completed({"loss": 0.5, "size": math.nan})
            answer = {"op": "validate_after", "length": 6}
            later = threading.Timer(0.5, self.say, [here, answer])
            later.start()
            assert (first.length, next(operations).length) == (2, 6)
            later.join()

    def test_the_method_gets_any_metric_but_none(self, here: Searched) -> None:
        """A mapping arrives as it is, NaN included."""
        with core.init() as context:
            op = next(context.searcher.operations())
            with pytest.raises(ValueError, match="needs a metric"):
                op.report_completed(None)
            op.report_completed({"loss": 0.5, "size": math.nan})
        dialogue = here.state.dialogue
        assert dialogue is not None
        metric = dialogue.events[-1]["metric"]
        assert metric["loss"] == 0.5 and math.isnan(metric["size"])

    def test_who_is_preempted_does_not_wait(self, here: Searched) -> None:
        """The trial leaves at once; its next operation can wait for its next run."""
        with core.init() as context:
            operations = context.searcher.operations()
            next(operations).report_completed(0.5)
            here.job.flag.request_preemption()
            assert next(operations, None) is None

    def test_the_end_of_the_search_reaches_a_trial_at_work(self, here: Searched) -> None:
        """After the method's shutdown the next report says stop."""
        with core.init() as context:
            context.train.report_validation_metrics(1, {"loss": 0.5})
            assert not context.preempt.should_preempt()
            self.say(here, {"op": "shutdown"})
            context.train.report_validation_metrics(2, {"loss": 0.5})
            assert context.preempt.should_preempt()


STOPPING = {
    "name": "async_halving",
    "metric": "loss",
    "smaller_is_better": True,
    "time_metric": "epochs",
    "max_time": 9,
    "num_rungs": 2,
    "divisor": 3,
    "max_trials": 4,
    "max_concurrent_trials": 4,
}


class TestStopRule:
    """`searcher.stop`: a report ends the search, and other trials hear of it."""

    RANDOM: ClassVar[dict[str, Any]] = {"name": "random", "metric": "loss", "max_trials": 3}

    def test_only_a_report_that_ends_the_search_is_in_its_log(self, begin: Begin) -> None:
        """The trial that reports the target is told to leave, and saves before it does."""
        here = begin({**self.RANDOM, "stop": {"target": 0.2}})
        with core.init() as context:
            for step, loss in enumerate((0.5, math.nan, 0.3), start=1):
                context.train.report_validation_metrics(step, {"loss": loss})
            context.train.report_validation_metrics(4, {"accuracy": 0.1})
            assert not context.preempt.should_preempt()
            assert here.log.position == 1
            context.train.report_validation_metrics(5, {"loss": 0.2})
            assert context.preempt.should_preempt()
            context.train.report_validation_metrics(6, {"loss": 0.1})
        assert here.job.flag.stop and not here.job.flag.preempt
        state = here.state
        assert here.log.position == 2
        assert (state.ended, state.trials[0].stop, state.open) == (True, True, 1)

    def test_another_trials_result_reaches_a_trial_at_work(self, begin: Begin) -> None:
        """With its next report, whatever that is; a trial that follows lengths gets no more."""
        here = begin({**PROMOTION, "stop": {"target": 0.2}})
        with core.init() as context:
            operations = context.searcher.operations()
            op = next(operations)
            context.train.report_validation_metrics(1, {"loss": 0.5})
            assert not context.preempt.should_preempt()
            here.others(0.1)
            context.train.report_validation_metrics(2, {"loss": 0.4})
            assert context.preempt.should_preempt()
            op.report_completed(0.1)
            assert list(operations) == []

    def test_reports_between_rungs_count(self, begin: Begin) -> None:
        """The search does not judge them, and they are not results of a rung."""
        here = begin({**PROMOTION, "stop": {"no_better_for": 1}})
        with core.init() as context:
            context.train.report_validation_metrics(4, {"loss": 0.5})  # more steps than the rung
            context.train.report_validation_metrics(5, {"loss": 0.6})
        state = here.state
        assert state.leader is not None and state.leader.metric == 0.5
        assert here.log.position == 2
        assert state.trials[0].reached == 0 and state.brackets[0].rungs[0].results == []


class TestStopping:
    """train.report_validation_metrics() in a search that stops trials early."""

    def test_a_trial_that_falls_behind_is_told_to_leave(self, begin: Begin) -> None:
        """Its next should_preempt() is true; only the report at the rung is in the log."""
        here = begin(STOPPING)
        here.others(0.1, 0.2)
        facts = here.log.position
        with core.init() as context:
            for epoch in (1, 2):
                context.train.report_validation_metrics(epoch * 10, {"loss": 0.5, "epochs": epoch})
                assert not context.preempt.should_preempt()
            context.train.report_validation_metrics(30, {"loss": 0.5, "epochs": 3.9})
            assert context.preempt.should_preempt()
            context.train.report_validation_metrics(40, {"loss": 0.5, "epochs": 4})
        assert here.job.flag.stop and not here.job.flag.preempt
        assert here.state.trials[0].stop
        assert here.log.position == facts + 1

    def test_a_leftover_length_changes_nothing(self, begin: Begin) -> None:
        """Code that asks for no operations is judged by its reports, and stopped at its rung."""
        searcher = {**STOPPING, "max_length": {"epochs": 9}}
        config = load_experiment({"entrypoint": "a", "searcher": searcher}).config
        here = begin(config.to_dict()["searcher"])
        here.others(0.1, 0.2)
        with core.init() as context:
            context.train.report_validation_metrics(30, {"loss": 0.5, "epochs": 3})
            assert context.preempt.should_preempt()

    def test_the_best_goes_on_to_the_end(self, begin: Begin) -> None:
        """It passes its rung, and is told to leave when it has reached the top one."""
        here = begin(STOPPING)
        here.others(0.1, 0.2)
        with core.init() as context:
            context.train.report_validation_metrics(1, {"loss": 0.05, "epochs": 3})
            assert not context.preempt.should_preempt()
            context.train.report_validation_metrics(2, {"loss": 0.05, "epochs": 9})
            assert context.preempt.should_preempt()
        assert here.state.trials[0].final

    def test_nan_is_the_worst(self, begin: Begin) -> None:
        """A diverged trial is stopped, and no error of the experiment's."""
        here = begin(STOPPING)
        here.others(1e30, 1e30)
        with core.init() as context:
            context.train.report_validation_metrics(1, {"loss": math.nan, "epochs": 3})
            assert context.preempt.should_preempt()

    def test_a_report_without_what_the_search_needs_raises(self, begin: Begin) -> None:
        """The metric, and the metric of time, must be there and be numbers."""
        begin(STOPPING)
        with core.init() as context:
            report = context.train.report_validation_metrics
            with pytest.raises(RuntimeError, match=r"searcher metric \(loss\).*only accuracy"):
                report(1, {"accuracy": 1, "epochs": 1})
            with pytest.raises(RuntimeError, match=r"searcher metric \(loss\).*'0.5'"):
                report(2, {"loss": "0.5", "epochs": 1})
            with pytest.raises(RuntimeError, match=r"time metric \(epochs\)"):
                report(3, {"loss": 0.5})

    def test_batches_are_the_steps_that_are_reported(self, begin: Begin) -> None:
        """With time_metric batches nothing has to be added to the metrics."""
        here = begin({**STOPPING, "time_metric": "batches"})
        here.others(0.1, 0.2)
        with core.init() as context:
            context.train.report_validation_metrics(3, {"loss": 0.5})
            assert context.preempt.should_preempt()

    def test_a_stop_that_a_crash_swallowed_is_said_again(self, begin: Begin) -> None:
        """The decision is in the log: the next process hears of it with its first report."""
        here = begin(STOPPING)
        here.others(0.1, 0.2)
        here.log.commit([{"e": "validated", "trial": 0, "time": 3, "metric": 0.5}])
        with core.init() as context:
            context.train.report_validation_metrics(1, {"loss": 0.5, "epochs": 1})
            assert context.preempt.should_preempt()

    @pytest.mark.parametrize("times", [2, 99])
    def test_a_store_that_fails_costs_no_training(
        self, begin: Begin, monkeypatch: pytest.MonkeyPatch, times: int
    ) -> None:
        """Not at the first report either, which reads the search's log: it is read again, and in
        the end left to the next report."""
        monkeypatch.setattr(_search, "SHORT", (0.0, 0.0))
        here = begin(STOPPING)
        here.others(0.1, 0.2)
        with core.init() as context:
            with failing("open", errno.EIO, times=times):
                context.train.report_validation_metrics(1, {"loss": 0.5, "epochs": 3})
            assert context.preempt.should_preempt() == (times == 2)
            context.train.report_validation_metrics(2, {"loss": 0.5, "epochs": 4})
            assert context.preempt.should_preempt()

    @pytest.mark.parametrize("mode", list(PreemptMode))
    def test_every_rank_of_the_node_hears_of_it(self, begin: Begin, mode: PreemptMode) -> None:
        """In all modes; in ChiefOnly the chief, who alone may ask."""
        here = begin(STOPPING)
        here.others(0.1, 0.2)

        def body(dist: DistributedContext) -> bool:
            with core.init(distributed=dist, preempt_mode=mode) as context:
                if dist.rank == 0:
                    context.train.report_validation_metrics(1, {"loss": 0.5, "epochs": 3})
                dist.broadcast(None)
                if mode is PreemptMode.ChiefOnly and dist.rank:
                    return True
                return context.preempt.should_preempt()

        assert on_ranks(3, body) == [True] * 3

    def test_a_search_without_lengths_has_no_operations(self, begin: Begin) -> None:
        """Every rank is told what the configuration lacks."""
        begin(STOPPING)

        def body(dist: DistributedContext) -> None:
            with core.init(distributed=dist) as context:
                next(context.searcher.operations())

        for outcome in on_ranks(2, body):
            assert isinstance(outcome, ValueError) and "max_length" in str(outcome)


SEVERAL: dict[str, Any] = {
    "metrics": [{"name": "loss"}, {"name": "speed", "smaller_is_better": False}],
    "constraints": {"gb": "<= 40"},
}
WHOLE = {"loss": 0.5, "speed": 2, "gb": math.nan}


class TestSeveral:
    """A search by several metrics, or with constraints."""

    def test_reports_carry_all_of_them(self, begin: Begin) -> None:
        """Those that are missing are named; a constraint that wasn't measured is null."""
        here = begin({**STOPPING, **SEVERAL})
        with core.init() as context:
            report = context.train.report_validation_metrics
            with pytest.raises(MetricError, match=r"searcher metric \(speed\).*only loss, epochs"):
                report(1, {"loss": 0.5, "epochs": 3})
            with pytest.raises(MetricError, match=r"searcher metric \(gb\).*'40'"):
                report(2, {"loss": 0.5, "speed": 1, "gb": "40", "epochs": 3})
            report(3, {**WHOLE, "speed": np.float32(2), "epochs": 3, "other": "text"})
        trial = here.state.trials[0]
        assert (trial.metric, trial.metrics) == (0.5, {"loss": 0.5, "speed": 2.0, "gb": None})

    def test_a_completed_operation_takes_a_mapping(self, begin: Begin) -> None:
        here = begin({**PROMOTION, **SEVERAL})
        with core.init() as context:
            op = next(context.searcher.operations())
            with pytest.raises(MetricError, match=r"by loss, speed, gb: .* 0.5 lacks loss, speed"):
                op.report_completed(0.5)
            with pytest.raises(MetricError, match=r"lacks speed$"):
                op.report_completed({"loss": 0.5, "gb": 1})
            op.report_completed({**WHOLE, "more": 1})
        trial = here.state.trials[0]
        assert (trial.reached, trial.metrics) == (3, {"loss": 0.5, "speed": 2.0, "gb": None})

    def test_so_it_is_where_no_result_decides(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        searcher = {"name": "random", "metric": "loss", "max_trials": 1, "max_length": 3, **SEVERAL}
        job = enter(tmp_path / "root", monkeypatch, {"searcher": searcher})
        with core.init() as context:
            op = next(context.searcher.operations())
            with pytest.raises(MetricError, match="lacks gb"):
                op.report_completed({"loss": 0.5, "speed": 1})
            op.report_completed(WHOLE)
        assert kinds(job) == ["completed"]


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (1, 1),
        (math.inf, math.inf),
        (np.float32(0.5), 0.5),
        (np.array(0.5), 0.5),
        (np.array([[0.5]]), 0.5),
        (np.int64(3), 3),
        ("0.5", None),
        (True, None),
        (np.array([1.0, 2.0]), None),
        ({"top1": 0.5}, None),
        (b"0.5", None),
        ([], None),
    ],
)
def test_the_searchers_metric_is_a_number(job: Job, value: Any, kept: float | None) -> None:
    """In any job; what is not one is refused where it is reported, as nothing could judge it."""
    with core.init() as context:
        context.train.report_validation_metrics(1, {"other": "text"})
        if kept is None:
            with pytest.raises(RuntimeError, match=r"searcher metric \(loss\)"):
                context.train.report_validation_metrics(2, {"loss": value})
        else:
            context.train.report_validation_metrics(2, {"loss": value})
        context.train.report_training_metrics(2, {"loss": value})
    found = [row.metrics.get("loss") for row in trial_metrics(job.trial, "validation")]
    assert found == ([None] if kept is None else [None, kept])
