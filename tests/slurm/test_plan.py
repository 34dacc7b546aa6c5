"""Slots to nodes, trials to arrays: the whole plan is pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detslurm.config import ExperimentConfig, SiteProfile
from detslurm.slurm import ClusterLimits, PartitionLimits, plan_job
from detslurm.slurm.arrays import dealt, plan_arrays, turns
from detslurm.slurm.layout import PlanError, layout
from detslurm.slurm.plan import JobPlan
from detslurm.slurm.request import Layout
from detslurm.slurm.site import site_profile_from

BASE: dict[str, Any] = {
    "name": "x",
    "entrypoint": "python3 train.py",
    "searcher": {"name": "random", "metric": "loss", "max_trials": 4, "max_length": 10},
    "hyperparameters": {},
    "reproducibility": {"experiment_seed": 1},
    "checkpoint_storage": {"type": "shared_fs", "host_path": "/x"},
}


def plan(
    trials: int = 4,
    *,
    site: SiteProfile | None = None,
    limits: ClusterLimits | None = None,
    **sections: Any,
) -> JobPlan:
    return plan_job(ExperimentConfig.from_dict({**BASE, **sections}), site, limits, trials)


def limits(**changes: Any) -> ClusterLimits:
    partition = PartitionLimits(
        name="main", default=True, cpus_per_node=8, gpus_per_node=4, max_nodes=3, **changes
    )
    return ClusterLimits(cluster="c", partitions={"main": partition})


@pytest.mark.parametrize(
    ("slots", "options", "expected"),
    [
        # cuda, tres and gres
        (4, {}, Layout(gpus="4", nodes=1, max_nodes=4, ntasks_per_node=1)),
        (1, {"gpu_type": "a100"}, Layout(gpus="a100:1", nodes=1, max_nodes=1, ntasks_per_node=1)),
        (8, {"slots_per_node": 4}, Layout(nodes=2, ntasks=2, gpus_per_task="4")),
        (2, {"slots_per_node": 4, "gpu_type": "t"}, Layout(ntasks=1, gpus_per_task="t:2")),
        # no tres
        (3, {"tres": False}, Layout(nodes=3, ntasks=3, gres="gpu:1")),
        (
            8,
            {"tres": False, "slots_per_node": 4, "gpu_type": "t"},
            Layout(nodes=2, ntasks=2, gres="gpu:t:4"),
        ),
        # neither
        (8, {"tres": False, "gres": False, "slots_per_node": 4}, Layout(nodes=2, ntasks=2)),
        # cpu
        (3, {"slot_type": "cpu"}, Layout(nodes=3, ntasks=3, cpus_per_task=1)),
        (
            8,
            {"slot_type": "cpu", "slots_per_node": 4},
            Layout(nodes=2, ntasks=2, cpus_per_task=4),
        ),
        # no slots
        (0, {}, Layout(ntasks=1, cpus_per_task=1)),
    ],
)
def test_the_table_of_the_original(slots: int, options: dict[str, Any], expected: Layout) -> None:
    """Where nothing is known of the nodes, the original's options."""
    kind = options.pop("slot_type", "cuda")
    assert layout(slots, kind, **options) == expected


@pytest.mark.parametrize(
    ("slots", "options", "expected"),
    [
        (4, {"slot_type": "cpu"}, Layout(ntasks=1, cpus_per_task=4)),
        (12, {"slot_type": "cpu"}, Layout(nodes=2, ntasks=2, cpus_per_task=6)),
        (4, {}, Layout(gpus="4", ntasks_per_node=1)),
        (6, {}, Layout(nodes=2, ntasks=2, gpus_per_task="3")),
        (6, {"tres": False}, Layout(nodes=2, ntasks=2, gres="gpu:3")),
        (3, {"slot_type": "cpu", "single_node": True}, Layout(ntasks=1, cpus_per_task=3)),
    ],
)
def test_known_nodes_are_filled_evenly(
    slots: int, options: dict[str, Any], expected: Layout
) -> None:
    """As few equal nodes as possible, instead of one per slot or of Slurm's 3 + 1."""
    kind = options.pop("slot_type", "cuda")
    assert layout(slots, kind, **options, limits=limits().partition("main")) == expected


def test_unequal_nodes_are_an_error() -> None:
    """It says which two settings don't fit."""
    with pytest.raises(PlanError, match=r"not a multiple of slurm\.slots_per_node"):
        plan(resources={"slots_per_trial": 6}, slurm={"slots_per_node": 4})


def test_more_nodes_than_the_partition_gives_is_an_error() -> None:
    """At once, instead of a job that waits for ever."""
    with pytest.raises(PlanError, match="needs 4 nodes"):
        plan(limits=limits(), resources={"slots_per_trial": 16})


@given(
    st.integers(1, 5000),
    st.integers(1, 1500),
    st.none() | st.integers(1, 2000),
    st.none() | st.integers(1, 40),
)
def test_arrays_cover_all_trials_and_keep_the_throttle(
    trials: int, size: int, tasks: int | None, throttle: int | None
) -> None:
    """Every trial once, in order, within the limits, never more at once than allowed."""
    arrays = plan_arrays(trials, max_array_size=size, max_array_tasks=tasks, throttle=throttle)
    covered = [i for array in arrays for i in range(array.first, array.first + array.count)]
    assert covered == list(range(trials))
    assert max(array.count for array in arrays) <= min(size, tasks or size)
    assert len(arrays) == -(-trials // min(size, tasks or size))
    if throttle is not None:
        free = [array for array in arrays if array.after is None]
        assert sum(min(c.throttle or c.count, c.count) for c in free) <= throttle
        for array in arrays:
            if array.after is not None:
                before = arrays[array.after]
                assert (array.throttle or array.count) <= max(before.throttle or before.count, 1)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(1, 60))
def test_unequal_arrays_keep_the_throttle_and_use_it(counts: list[int], at_once: int) -> None:
    """Never more at once than allowed, however arrays follow each other; one large array beside
    many small ones has most of it."""
    found = turns(counts, at_once)
    running = [throttle or count for (throttle, _), count in zip(found, counts, strict=True)]
    free = sum(n for n, (_, after) in zip(running, found, strict=True) if after is None)
    assert free <= at_once
    for number, (_, after) in enumerate(found):
        if after is not None:
            assert after < number and running[number] == running[after] == 1
    for count, most in zip(counts, running, strict=True):
        assert most >= min(at_once * count // sum(counts), count)
    shares = dealt(at_once, counts)
    assert min(shares) >= 1
    assert sum(shares) == at_once or at_once < len(counts)


def test_a_large_array_is_not_held_up_by_small_ones() -> None:
    """It gets all but what the small ones take, one after the other."""
    (large, first), *small = turns([500, *[1] * 16], 16)
    assert (large, first, small[0], small[-1]) == (15, None, (None, None), (None, 15))
    assert dealt(16, [500, 2, 1]) == [13, 2, 1]


def test_the_throttle_is_the_least_of_both_bounds() -> None:
    """max_concurrent_trials counts trials, max_slots slots; 0 trials means no bound."""
    searcher = {**BASE["searcher"], "max_concurrent_trials": 3}
    assert plan(10, searcher=searcher).arrays[0].throttle == 3
    narrow = {"slots_per_trial": 2, "max_slots": 5}
    assert plan(10, searcher=searcher, resources=narrow).arrays[0].throttle == 2
    unlimited = {**searcher, "max_concurrent_trials": 0}
    assert plan(10, searcher=unlimited).arrays[0].throttle is None
    with pytest.raises(PlanError, match="no trial could ever start"):
        plan(resources={"slots_per_trial": 4, "max_slots": 3})


def test_time_priority_and_signal() -> None:
    """Minutes rounded up; priority and weight as nice; the warning never comes at the start."""
    template = plan(slurm={"time": "0-00:10:30"}, resources={"priority": 11}).template
    assert (template.time_minutes, template.nice, template.signal_lead) == (11, 10, 120)
    short = plan(slurm={"time": "0-00:03:00"}).template
    assert short.signal_lead == 60
    for resources, nice in (
        ({}, None),
        ({"priority": 42}, 41),
        ({"priority": 1}, 0),
        ({"priority": 99}, 98),
        ({"weight": 2}, 20),
        ({"weight": 1000}, 0),
        ({"weight": 0.01}, 98),
        ({"weight": 2, "priority": 7}, 6),
    ):
        assert plan(resources=resources).template.nice == nice
    for points, nice in ((1000.0, 41), (41.0, 41), (40.9, None)):
        assert plan(limits=replace(limits(), age_points=points)).template.nice == nice
    assert plan(limits=limits(default_time=3)).template.signal_lead == 60
    assert plan(slurm={"time": "UNLIMITED"}).template.time_minutes == 0


def test_reserved_options_are_refused_by_name() -> None:
    """Also with a space, abbreviated or behind another option."""
    for entry in ("--nodes 2", "-N4", "--outp=x", "--gres=gpu:2"):
        with pytest.raises(PlanError, match="sbatch_args"):
            plan(slurm={"sbatch_args": [entry]})
    assert plan(slurm={"sbatch_args": ["--mem=4G", "--mem=4G"]}).template.sbatch_args == (
        "--mem=4G",
    )


def test_requests_of_a_plan() -> None:
    """One trial is a plain job, more are an array."""
    one = plan(1)
    request = one.request(one.arrays[0], name="n", command=["c"], folder=Path("/f"))
    assert not request.is_array
    many = plan(5, site=SiteProfile(tres_supported=False))
    request = many.request(many.arrays[0], name="n", command=["c"], folder=Path("/f"), hold=True)
    assert (request.count, request.hold) == (5, True)
    assert request.gres == "gpu:1"


def test_the_local_cluster_needs_no_nodes() -> None:
    """Slots are counted on the machine; what it has not, is refused."""
    here = PartitionLimits(name="local", default=True, cpus_per_node=4, gpus_per_node=0)
    local = ClusterLimits(cluster="local", partitions={"local": here})
    made = plan(limits=local, resources={"slots_per_trial": 4, "resource_pool": "main"})
    assert (made.slot_type, made.template.slots, made.template.partition) == ("cpu", 4, None)
    with pytest.raises(PlanError, match="this machine has 4 CPUs"):
        plan(limits=local, resources={"slots_per_trial": 5})
    with pytest.raises(PlanError, match="this machine has 0 GPUs"):
        plan(limits=local, slurm={"slot_type": "cuda"})


def test_an_unknown_or_closed_partition_is_noted() -> None:
    """sbatch decides in the end, so it is no error here."""
    assert "not known" in plan(limits=limits(), resources={"resource_pool": "nope"}).notes[0]
    assert "down" in plan(limits=limits(up=False)).notes[0]


def test_the_written_site_profile_can_be_read(tmp_path: Path) -> None:
    """What `site init` writes is a valid profile that says the same."""
    from detslurm.config import load_site

    odd = PartitionLimits(name="on", preempt_mode="GANG,SUSPEND", grace_time=30)
    site = ClusterLimits(
        cluster="big",
        gres_types=("gpu",),
        tres_gpus=False,
        partitions={**limits(preempt_mode="REQUEUE").partitions, "on": odd},
    )
    path = tmp_path / "site.yaml"
    path.write_text(site_profile_from(site, ["none", "pmi2", "pmix"]))
    profile = load_site(path)
    assert (profile.partition, profile.slot_type, profile.mpi) == ("main", "cuda", "pmix")
    assert (profile.gres_supported, profile.tres_supported) == (True, False)
    assert profile.partitions["main"].preempt_mode == "requeue"
    assert (profile.partitions["on"].slot_type, profile.partitions["on"].grace_time) == ("cpu", 30)


def test_several_partitions_are_taken_for_the_least_of_them() -> None:
    """A job may start in any: it fits everywhere, and lasts as long as one of them lets it."""
    kinds = (
        PartitionLimits(name="a", cpus_per_node=16, gpus_per_node=4, max_time=60, nodes=("n1",)),
        PartitionLimits(
            name="b", cpus_per_node=8, gpus_per_node=0, nodes=("n1", "n2"), preempt_mode="CANCEL"
        ),
    )
    known = ClusterLimits(cluster="c", partitions={one.name: one for one in kinds})
    both = known.partition("a,b")
    assert both is not None and both.nodes == ("n1", "n2")
    assert (both.cpus_per_node, both.gpus_per_node, both.max_time) == (8, 4, None)
    assert both.preempt_mode == "CANCEL" and both.default_time == 60
    assert known.partition("a,c") is None
    made = plan(
        limits=known,
        resources={"slots_per_trial": 16, "resource_pool": "a,b"},
        slurm={"slot_type": "cpu"},
    )
    assert (made.template.nodes, made.template.cpus_per_task) == (2, 8)
    assert not any("not known" in note for note in made.notes)
