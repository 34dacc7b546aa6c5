"""What a submission costs: figures with their sources, and reasons where there are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detslurm.sdk.costs.cost import Pace, PartitionLoad, Work, cost_of, fitting, makespan
from detslurm.sdk.costs.evidence import load_from
from detslurm.slurm import JobInfo
from detslurm.slurm.node_info import NodeInfo

WORK = Work(
    trials=8,
    jobs=8,
    slots=2,
    at_once=4,
    units=800,
    longest=100,
    limit=7200,
    limit_source="slurm.time",
)
PACE = Pace(9.0, "unit", "9 s a batch, the median of 3 trials of experiment 4")
LOAD = PartitionLoad("gpu", free=(4, 2, 0), total=(4, 4, 4), pending=0)


def test_each_figure_has_its_source() -> None:
    """The bound from the time limit, the rest from what earlier runs took and what is free now."""
    cost = cost_of(WORK, PACE, LOAD)
    assert (
        cost.most_slot_hours.value == 32
        and cost.most_slot_hours.source
        == "8 jobs x 2 slots x 2:00:00 (slurm.time), without the further jobs of trials that need"
        " longer"
    )
    assert (cost.expected_slot_hours.value, cost.expected_slot_hours.source) == (4, PACE.source)
    assert cost.wall_seconds.value == 3 * 900  # 3 of 4 fit: 8 trials in 3 turns
    assert cost.wall_seconds.source == "3 at once: 6 of 12 slots of 'gpu' are free"


def test_a_budget_is_the_most() -> None:
    """Jobs that come to their limit go on in others: only a budget ends that."""
    most = cost_of(replace(WORK, budget=100), PACE, LOAD).most_slot_hours
    assert most.value == 100 and "slurm.budget" in most.source


def test_jobs_that_wait_make_the_wall_time_a_bound() -> None:
    """What may start before takes slots: the time is at least that."""
    wall = cost_of(WORK, PACE, replace(LOAD, pending=5)).wall_seconds
    assert wall.bound == "least" and "5 jobs may start before" in wall.source


@pytest.mark.parametrize(
    ("work", "pace", "load", "unknown"),
    [
        (WORK, "no earlier trial", LOAD, {"unit_seconds", "expected_slot_hours", "wall_seconds"}),
        (WORK, PACE, "squeue does not answer", {"wall_seconds"}),
        (WORK, PACE, replace(LOAD, free=(1, 1, 1)), {"wall_seconds"}),
        (WORK, PACE, replace(LOAD, free=(0,), total=(1,)), {"wall_seconds"}),
        (replace(WORK, limit=None, limit_source="no limit"), PACE, LOAD, {"most_slot_hours"}),
        (replace(WORK, units=None), PACE, LOAD, {"expected_slot_hours", "wall_seconds"}),
        (replace(WORK, trials=None), PACE, LOAD, {"expected_slot_hours", "wall_seconds"}),
    ],
)
def test_what_is_not_known_is_not_zero(
    work: Work, pace: Pace | str, load: PartitionLoad | str, unknown: set[str]
) -> None:
    """It has no value, and a reason."""
    cost = cost_of(work, pace, load).to_dict()
    assert {name for name, figure in cost.items() if figure["value"] is None} == unknown
    assert all(figure["source"] for figure in cost.values())


def test_trials_of_several_lengths_take_as_long_as_the_longest() -> None:
    """A search's trials end early; no number of slots makes it shorter than its longest trial."""
    assert makespan(10, total=100, longest=40, at_once=2) == 50
    assert makespan(10, total=100, longest=40, at_once=9) == 40
    assert makespan(5, total=50, longest=10, at_once=2) == 30


def test_trials_fit_into_nodes_not_into_sums() -> None:
    """Two nodes with one free slot each hold no trial of two slots, unless it takes two nodes."""
    assert fitting((1, 1), slots=2, nodes=1) == 0
    assert fitting((1, 1), slots=2, nodes=2) == 1
    assert fitting((8, 3), slots=2, nodes=1) == 5


def test_the_load_is_that_of_nodes_that_take_jobs() -> None:
    """Drained nodes and other partitions have no free slots; held jobs are ahead of nobody."""
    nodes = [
        NodeInfo(name="n1", state="MIXED", partitions=("gpu",), cpus=8, cpus_used=3, gpus=4),
        NodeInfo(name="n2", state="IDLE+DRAIN", partitions=("gpu",), cpus=8, gpus=4),
        NodeInfo(name="n3", state="IDLE", partitions=("cpu",), cpus=8),
    ]
    queue = [
        JobInfo(ref="1", state="RUNNING"),
        JobInfo(ref="2_[3-5]", state="PENDING", reason="Resources"),
        JobInfo(ref="3", state="PENDING", reason="JobHeldUser"),
        JobInfo(ref="4", state="PENDING", reason="Dependency", dependency="afterany:1"),
    ]
    assert load_from("gpu", "cpu", nodes, queue) == PartitionLoad("gpu", (5,), (8,), 3)
    assert load_from("gpu", "cuda", nodes, queue).free == (4,)
    both = load_from("gpu,cpu", "cpu", nodes, queue)  # a job starts in either
    assert (both.free, both.total) == ((5, 8), (8, 8))
