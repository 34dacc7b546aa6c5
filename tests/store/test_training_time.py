"""The table of a trial's time: parts sum to the whole, and simulated failures give the formula."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detslurm.store import CheckpointView, RunView
from detslurm.store.run_records import JobRecord
from detslurm.store.run_usage import Requested, RunUsage, UsagePoint
from detslurm.store.time_parts import (
    PARTS,
    Interval,
    advice,
    best_interval,
    expected_ratio,
    seconds_of,
)
from detslurm.store.trial_time import TimedRun, TrainingTime, recorded_intervals, training_time

HOUR = 3600.0


def table(runs: list[TimedRun], checkpoints: list[CheckpointView] | None = None) -> TrainingTime:
    found = training_time(runs, checkpoints or [])
    assert found is not None
    return found


def run(number: int, begin: float, end: float, **fields: Any) -> TimedRun:
    """A run whose job started with it, unless `job_start` says otherwise."""
    about = {name: fields.pop(name) for name in ("intervals", "queued", "usage") if name in fields}
    job = JobRecord(ref="7", started=fields.pop("job_start", None))
    view = RunView(number=number, started=begin, ended=end, job=job, **fields)
    return TimedRun(view=view, end=end, **about)


def checkpoint(name: str, number: int, time: float, steps: int) -> CheckpointView:
    return CheckpointView(uuid=name, trial=1, run=number, steps=steps, time=time)


times = st.floats(0, 1000)
intervals = st.lists(st.builds(Interval, st.sampled_from(PARTS), times, times), max_size=20)


@given(intervals, times, times)
def test_parts_sum_to_the_whole(found: list[Interval], begin: float, end: float) -> None:
    """Whatever overlaps, and whatever is outside."""
    seconds = seconds_of(found, begin, end)
    assert sum(seconds.values()) == pytest.approx(max(end - begin, 0.0), abs=1e-6)
    assert all(value >= 0 for value in seconds.values())


outcomes = st.sampled_from(["restart", "preempted", "paused", "lost", "time_limit"])
chain_links = st.tuples(outcomes, st.lists(times, min_size=6, max_size=6), st.booleans())


@given(st.lists(chain_links, min_size=1, max_size=8))
def test_any_chain_of_runs_sums_to_its_time(chain: list[tuple[str, list[float], bool]]) -> None:
    """Also where facts contradict each other, as clocks of nodes may."""
    now, runs, saved = 100.0, [], []
    for number, (outcome, (wait, slurm, start, train, save, rest), knows) in enumerate(chain, 1):
        began = now + wait + slurm
        first, done = began + start, began + start + train + save
        saved.append(checkpoint(f"c{number}", number, done, 10 * number))
        spent = (
            Interval("start_code", began - 5.0, first),
            Interval("save", done - save, done),
        )
        runs.append(
            run(
                number,
                began,
                done + rest,
                outcome=outcome,
                queued=now if knows else None,
                job_start=now + wait if knows else None,
                intervals=spent if knows else (),
                steps=10 * number + number % 2,
                resumed_from=f"c{number - 1}" if number > 1 else None,
                resumed_steps=10 * (number - 1),
            )
        )
        now = done + rest
    found = table(runs, saved)
    whole = runs[-1].end - (runs[0].queued or runs[0].job_start or runs[0].begin)
    assert sum(one or 0.0 for one in found.parts.values()) == pytest.approx(whole)
    assert 0 <= found.productive <= found.since_start + 1e-6


def test_a_preemption_and_a_failure() -> None:
    """A run that saves and leaves, one that fails 30 s after its last save, and one that ends."""
    start = Interval("start_code", 12.0, 20.0)
    runs = [
        run(1, 10.0, 105.0, outcome="preempted", queued=0.0, job_start=8.0, steps=80,
            intervals=(start, Interval("save", 95.0, 100.0))),
        run(2, 155.0, 255.0, outcome="restart", queued=105.0, job_start=150.0, steps=150,
            resumed_from="a", resumed_steps=80, intervals=(Interval("save", 220.0, 225.0),)),
        run(3, 260.0, 300.0, outcome="completed", steps=170, job_start=150.0, resumed_from="b",
            resumed_steps=130, intervals=(Interval("validation", 290.0, 300.0),)),
    ]  # fmt: skip
    found = table(runs, [checkpoint("a", 1, 100.0, 80), checkpoint("b", 2, 225.0, 130)])
    assert found.parts == {
        "queue": 8.0 + 45.0,
        "paused": 0.0,
        "training": 75.0 + 65.0 + 30.0,
        "restart": 5.0 + 5.0,  # leaving, and from run 2 to run 3 in the same job
        "repeated": 30.0,
        "idle": None,
        "validation": 10.0,
        "start_slurm": 2.0 + 5.0,
        "start_detslurm": 2.0,
        "start_code": 8.0,
        "save": 10.0,
    }
    assert (found.since_start, found.since_submission) == (292.0, 300.0)
    assert found.ettr == pytest.approx(180 / 292)
    assert found.ettr_submission == pytest.approx(180 / 300)
    assert found.saving.failures == 1


def test_the_unknown_is_not_zero() -> None:
    """A run of an older version: only its begin, its end and a checkpoint."""
    found = table([run(1, 0.0, 100.0, outcome="completed", steps=9)], [checkpoint("a", 1, 50.0, 9)])
    unknown = {name for name, seconds in found.parts.items() if seconds is None}
    assert unknown == {
        "queue", "idle", "validation", "start_slurm", "start_detslurm", "start_code", "save",
    }  # fmt: skip
    assert found.since_submission is None and found.ettr_submission is None
    assert (found.ettr, found.checkpoint, found.ettr_best) == (1.0, None, None)
    assert training_time([], []) is None
    both = TrainingTime.total([found, table([run(1, 0.0, 50.0, queued=0.0)])])
    assert both is not None and both.since_submission is None and both.parts["queue"] == 0.0


def test_pauses_do_not_count() -> None:
    """A user who pauses a trial for a day has lost nothing."""
    runs = [run(1, 0.0, 100.0, outcome="paused", queued=0.0), run(2, 900.0, 1000.0)]
    found = table(runs)
    assert found.parts["paused"] == 800.0
    assert (found.since_start, found.since_submission) == (200.0, 200.0)


def test_idle_processes_do_not_train() -> None:
    """Their samples are the evidence; before the first batch it is the start's time."""
    history = [
        UsagePoint(20.0, 20.0, 0.1),
        UsagePoint(60.0, 40.0, 40.0),
        UsagePoint(90.0, 30.0, 0.1),
    ]
    used = RunUsage(requested=Requested(slots=1), begun=0.0, slot_seconds=90.0, history=history)
    start = (Interval("start_code", 0.0, 15.0),)
    found = table([run(1, 0.0, 90.0, usage=used, intervals=start)])
    assert found.parts["idle"] == 5.0 + 30.0 and found.parts["training"] == 40.0


def test_records_of_a_run() -> None:
    """Only those that have their seconds; others are ignored."""
    records = [
        {"t": "spent", "on": "start", "seconds": 3.0, "time": 10.0},
        {"t": "spent", "on": "what a later version knows", "seconds": 3.0, "time": 10.0},
        {"t": "checkpoint", "uuid": "a", "steps": 1, "time": 20.0},
        {"t": "checkpoint", "uuid": "b", "steps": 2, "time": 30.0, "seconds": 4.0},
        {"t": "metrics", "group": "validation", "time": 5.0},
    ]
    assert [*recorded_intervals(records)] == [
        Interval("start_code", 7.0, 10.0),
        Interval("save", 26.0, 30.0),
    ]


def simulated(
    random: Random, interval: float, save: float, failure: float, recovery: float, runs: int
) -> TrainingTime:
    """The facts that the store would have of runs under random failures, in virtual time."""
    now, steps, made, saved = 0.0, 0.0, [], []
    kept: str | None = None
    for number in range(1, runs + 1):
        queue, start = 0.7 * recovery, 0.3 * recovery
        began = now + queue
        first, end = began + start, began + start + random.expovariate(1 / failure)
        spent = [Interval("start_code", began, first)]
        at, before, resumed = first, steps, kept
        while at + interval + save <= end:
            at, steps = at + interval + save, steps + interval
            kept = f"{number}-{steps}"
            saved.append(checkpoint(kept, number, at, int(steps)))
            spent.append(Interval("save", at - save, at))
        made.append(
            run(number, began, end, outcome="lost", queued=now, intervals=tuple(spent),
                steps=int(steps) + 1, resumed_from=resumed, resumed_steps=int(before))
        )  # fmt: skip
        now = end
    return table(made, saved)


# Meta's study (arXiv 2410.21680) has 6.5 failures in a thousand node-days, and 7.9 hours between
# two failures of a job of 1,024 GPUs.
SCHEDULES = [
    (HOUR, 60.0, 7.9 * HOUR, 600.0),
    (HOUR / 4, 60.0, 7.9 * HOUR, 600.0),
    (HOUR, 300.0, 1000 / 6.5 / 128 * 24 * HOUR, 1800.0),
    (2 * HOUR, 120.0, 2.0 * HOUR, 300.0),
]


@pytest.mark.parametrize(("interval", "save", "failure", "recovery"), SCHEDULES)
def test_a_schedule_of_failures_gives_the_formula(
    interval: float, save: float, failure: float, recovery: float
) -> None:
    """The measured ratio of 3,000 runs is within 2 % of the expected ratio."""
    found = simulated(Random(7), interval, save, failure, recovery, 3000)
    expected = expected_ratio(interval, save, failure, recovery)
    assert found.ettr_submission == pytest.approx(expected, rel=0.02)
    best = found.checkpoint
    assert best is not None and best.failures == pytest.approx(3000, rel=0.01)
    assert best.seconds == pytest.approx(best_interval(save, failure), rel=0.05)
    assert best.current == pytest.approx(interval)
    # The promised gain of the best interval comes true.
    better = simulated(Random(8), best.seconds, save, failure, recovery, 3000)
    expected = best.gain * (found.ettr_submission or 0.0)
    assert better.ettr_submission == pytest.approx(expected, rel=0.03)


@given(st.floats(1, 600), st.floats(600, 1e6), st.floats(0, 1e4))
def test_youngs_interval_is_about_the_best(save: float, failure: float, recovery: float) -> None:
    """No other interval is much better, as long as saves are short against failures."""
    best = expected_ratio(best_interval(save, failure), save, failure, recovery)
    others = [expected_ratio(save * 1.3**n, save, failure, recovery) for n in range(-5, 40)]
    assert best >= max(others) * (0.99 if save < failure / 20 else 0.7)


def test_advice_needs_failures_and_saves() -> None:
    """Without them nothing is better than anything else."""
    assert advice([], [100.0], 3, 1000.0, 10.0) is None
    assert advice([5.0], [], 3, 1000.0, 10.0) is None
    assert advice([5.0], [100.0], 0, 1000.0, 10.0) is None
    assert advice([0.0], [100.0], 3, 1000.0, 10.0) is None
    assert advice([5.0], [1e9], 3, 1000.0, 10.0) is None
