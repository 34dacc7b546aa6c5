"""What trials did with what they had, by facts alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detslurm.sdk.costs.efficiency import (
    efficiency_of,
    percentile,
    run_figures,
    usage_history,
)
from detslurm.store import RunView, TrialDir, TrialView
from detslurm.store.run_records import JobRecord
from detslurm.store.run_usage import Requested, RunUsage, parse_usage

GIGABYTE = 1 << 30


def run(number: int = 1, **fields: Any) -> RunView:
    """A run of an hour that has completed."""
    known: dict[str, Any] = {"started": 0.0, "ended": 3600.0, "outcome": "completed"}
    return RunView(number=number, **{**known, **fields})


def usage(*samples: dict[str, Any], **requested: Any) -> RunUsage:
    """What a runner makes of these samples."""
    found = RunUsage(requested=Requested(**{"slots": 1, **requested}))
    for number, sample in enumerate(samples):
        found.add(sample, now=float(number))
    return found


def figures(runs: list[RunView], usages: list[RunUsage | None], slots: int = 1) -> Any:
    view = TrialView(id=7, experiment_id=1, state="COMPLETED", runs=tuple(runs))
    return efficiency_of(view, slots, run_figures(runs, usages, None))


def waited(runs: list[RunView], submitted: dict[str, float] | None) -> float | None:
    view = TrialView(id=7, experiment_id=1, state="COMPLETED", runs=tuple(runs))
    return efficiency_of(view, 1, run_figures(runs, [None] * len(runs), None, submitted)).queue_time


def test_samples_of_all_nodes_add_up() -> None:
    """Two nodes of 4 CPUs: CPU time adds up, the fuller node decides about memory."""
    one = {"seconds": 10.0, "cpu": 15.0, "resident": GIGABYTE}
    other = {"seconds": 10.0, "cpu": 5.0, "resident": 3 * GIGABYTE}
    used = usage(one, other, nodes=2, cpus=8, memory=4 * GIGABYTE, slots=2)
    found = figures([run()], [used], 2)
    assert (found.cpus_used, found.cpus_requested, found.cpu_percent) == (2.0, 8, 25.0)
    assert (found.memory_peak, found.memory_percent) == (3 * GIGABYTE, 75.0)
    assert (found.slot_hours, found.slot_hours_wasted) == (2.0, 0.0)
    assert found.gpu_percent is None and found.gpu_memory_peak is None
    assert parse_usage(used.to_dict()) == used


def test_gpus_that_nobody_uses_are_wasted() -> None:
    """One of two GPUs is idle all the time: that is half of the slot-hours."""
    sample = {"seconds": 10.0, "cpu": 10.0, "gpus": [{"percent": 80, "memory": 5}, {"percent": 0}]}
    found = figures([run()], [usage(sample, slots=2)], 2)
    assert (found.gpu_percent, found.gpu_percent_p10, found.gpu_memory_peak) == (40.0, 0.0, 5)
    assert (found.slot_hours, found.slot_hours_wasted) == (2.0, 1.0)


def test_what_is_not_available_is_not_zero() -> None:
    """GPUs without a library, and a run that nobody observed."""
    blind = usage({"seconds": 10.0, "cpu": 0.0, "gpus": [{}]})
    for known in (blind, None):
        found = figures([run()], [known])
        assert found.gpu_percent is None and found.gpu_memory_peak is None
        assert found.memory_peak is None and found.slot_hours == 1.0
        assert found.slot_hours_wasted is None
    assert figures([], []).elapsed is None and figures([], []).slot_hours is None


def test_a_node_without_gpus_is_idle_while_its_processes_do_nothing() -> None:
    """Ten seconds of thirty."""
    busy, idle = {"seconds": 20.0, "cpu": 2.0}, {"seconds": 10.0, "cpu": 0.3}
    found = figures([run()], [usage(busy, idle)])
    assert found.slot_hours_wasted == pytest.approx(1 / 3)


def test_what_is_trained_again_was_trained_in_vain() -> None:
    """By its batches; a run that failed without any was all in vain, one that is paused was not."""
    runs = [
        run(1, outcome="restart", steps=100),
        run(2, outcome="paused", steps=80, resumed_steps=75),
        run(3, outcome="restart", steps=80, resumed_steps=80),
        run(4, steps=200, resumed_steps=80),
    ]
    found = figures(runs, [None] * 4)
    assert found.steps_lost == 25
    assert found.slot_hours_wasted == pytest.approx(0.25 + 1.0)
    assert found.elapsed == 4 * 3600


def test_a_run_that_died_ends_with_its_last_sample() -> None:
    """Not when somebody found out; without samples its time is unknown."""
    died = run(1, outcome="lost", ended=90_000.0, started=0.0)
    known = usage({"seconds": 1.0}, {"seconds": 1.0})  # the second one at 1.0
    assert run_figures([died], [known], None)[0].seconds == 1.0
    assert run_figures([died], [None], None)[0].seconds is None
    goes_on = run(1, outcome=None, ended=None, started=10.0)
    assert run_figures([goes_on], [None], 25.0)[0].seconds == 15.0


def test_percentiles_go_by_weight() -> None:
    """A tenth of the time, not a tenth of the values."""
    assert percentile({0: 1.0, 50: 8.0, 90: 1.0}, 10) == 0
    assert percentile({0: 0.5, 50: 8.5, 90: 1.0}, 10) == 50
    assert percentile({}, 10) is None


def job(ref: str = "12_3", again: int = 0) -> JobRecord:
    array = ref.partition("_")[0]
    return JobRecord(ref=ref, array_job_id=array, job_id="99", restart_count=again)


def test_jobs_wait_from_their_submission_or_from_the_requeue() -> None:
    """Restarts in the same allocation did not wait, and a paused trial does not."""
    runs = [
        run(1, started=30.0, ended=40.0, outcome="restart", job=job()),
        run(2, started=41.0, ended=50.0, outcome="preempted", job=job()),
        run(3, started=70.0, ended=80.0, outcome="paused", job=job(again=1)),
        run(4, started=500.0, ended=600.0, outcome="time_limit", job=job(again=2)),
        run(5, started=607.0, ended=900.0, job=job("13")),
    ]
    submitted = {"12": 10.0, "13": 590.0}
    assert waited(runs, submitted) == 20 + 20 + 7
    assert waited(runs[:1], {}) is None
    assert waited(runs[:1], None) is None


def test_history_is_thinned_with_age() -> None:
    """Whatever its length, a run has a few points: all of it, the newest as they came."""
    used = RunUsage(requested=Requested(nodes=2, slots=2))
    for number in range(1, 5761):  # a day
        for node in (0, 1):
            cpu = {
                "seconds": 15.0,
                "cpu": 15.0 * node,
                "resident": number,
                "gpus": [{"percent": 50}],
            }
            used.add(cpu, now=1e9 + 15.0 * number + node)
    assert len(used.history) <= 64
    assert sum(point.node_seconds for point in used.history) == pytest.approx(2 * 86400)
    lengths = [point.node_seconds for point in used.history]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-16:] == [30.0] * 16 and lengths[0] > 3600
    assert used.history[-1].memory == 5760 and used.history[-1].gpu_percent == 50.0
    assert parse_usage(used.to_dict()) == used


def test_samples_of_many_nodes_come_all_the_time() -> None:
    """They belong to one round for a while, not until the end of the run."""
    used = RunUsage(requested=Requested(nodes=100, slots=100))
    for number in range(1, 1001):
        used.add({"seconds": 15.0, "cpu": 15.0}, now=1e9 + 0.15 * number)
    assert 15 <= len(used.history) <= 30
    assert all(p.cpu_seconds == pytest.approx(p.node_seconds) for p in used.history)


def test_history_of_all_runs(tmp_path: Path) -> None:
    """By the clock, with the CPUs of all nodes; a run that nobody observed has none."""
    used = usage({"seconds": 10.0, "cpu": 30.0, "resident": 5}, nodes=2)
    view = TrialView(
        id=7, experiment_id=1, state="COMPLETED", runs=(run(1), run(2, usage=used))
    )  # fmt: skip
    (row,) = usage_history(TrialDir(tmp_path, 7, 1), view)
    assert (row.run, row.time, row.cpus, row.memory, row.gpu_percent) == (2, 0.0, 6.0, 5, None)
