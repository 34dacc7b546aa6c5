"""The whole queue and all nodes, as Slurm prints them."""

from __future__ import annotations

from functools import partial

import pytest

from detslurm.slurm import JobInfo
from detslurm.slurm.interface import PartitionLimits
from detslurm.slurm.node_info import NodeInfo
from detslurm.slurm.nodes import parse_nodes
from detslurm.slurm.queue_listing import (
    FIELDS,
    listing_command,
    new_separator,
    parse_listing,
    scheduling_order,
)
from tests.counting import calls

SEPARATOR = "|0f3a|"


def _row(**changes: str) -> str:
    given = {
        "ArrayJobID": "12",
        "ArrayTaskID": "N/A",
        "State": "PENDING",
        "Reason": "Priority",
        "Partition": "main",
        "PriorityLong": "4294901750",
        "Nice": "30",
        "UserName": "alice",
        "SubmitTime": "1700000000",
        "StartTime": "N/A",
        "TimeLimit": "1-00:00:00",
        "TimeLeft": "1-00:00:00",
        "NumNodes": "2",
        "NumCPUs": "4",
        "NumTasks": "2",
        "tres-alloc": "cpu=4,mem=1.50G,node=2,billing=4,gres/gpu=8",
        "WorkDir": "/home/alice",
        "Name": "train",
        **{name.replace("_", "-"): text for name, text in changes.items()},
    }
    return "".join(f"{given.get(name, '(null)')}{SEPARATOR}" for name in FIELDS) + "\n"


def _parsed(**changes: str) -> JobInfo:
    return parse_listing(_row(**changes), SEPARATOR)[0]


def test_a_waiting_range_and_a_running_element() -> None:
    """Indices, throttle, resources of one element; a waiting job's start is an expectation."""
    text = _row(ArrayTaskID="3-5,8%2", StartTime="1700000900", Partition="main,low") + _row(
        ArrayTaskID="0", State="RUNNING", Reason="None", NodeList="n[1-2]", StartTime="1700000100"
    )
    waits, runs = parse_listing(text, SEPARATOR)
    assert (waits.ref, waits.count, waits.throttle) == ("12_[3-5,8]", 4, 2)
    assert waits.refs == ["12_3", "12_4", "12_5", "12_8"]
    assert (waits.gpus, waits.slots, waits.cpus, waits.memory) == (8, 8, 4, 1536)
    assert (waits.expected_start, waits.started) == (1700000900.0, None)
    assert (waits.priority, waits.nice, waits.time_limit) == (4294901750, 30, 86400)
    assert waits.partitions == ("main", "low")
    assert waits.waiting
    assert (runs.ref, runs.reason, runs.nodes) == ("12_0", "", ("n1", "n2"))
    assert (runs.expected_start, runs.started) == (None, 1700000100.0)
    assert runs.running


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ({"tres_per_job": "gres:gpu:fake:6"}, 6),
        ({"tres_per_node": "gres/gpu:3"}, 6),
        ({"tres_per_node": "gpu:a100=2"}, 4),
        ({"tres_per_task": "gres/gpu:1"}, 2),
        ({"tres_alloc": "cpu=4,gres/gpu:a100=2,gres/gpu:h100=1"}, 3),
        ({"tres_per_node": "gres:shard:4"}, 0),
    ],
)
def test_gpus_where_the_site_does_not_count_them(asked: dict[str, str], gpus: int) -> None:
    """What was asked for, in the words of every version; without GPUs slots are CPUs."""
    job = _parsed(**{"tres_alloc": "cpu=4,node=2,billing=4", **asked})
    assert job.gpus == gpus
    assert job.slots == (gpus or 4)


def test_no_name_can_pretend_to_be_another_job() -> None:
    """Line breaks and separators of any other kind belong to the name; errors are no jobs."""
    forged = f"a|b\n{_row(ArrayJobID='99').replace(SEPARATOR, '|')}"
    found = parse_listing(_row(Name=forged) + _row(ArrayJobID="13"), SEPARATOR)
    assert [job.job_id for job in found] == ["12", "13"]
    assert found[0].name == forged.strip()
    assert parse_listing("torn" + SEPARATOR, SEPARATOR) == []
    assert parse_listing("", SEPARATOR) == []
    assert new_separator() != new_separator()
    assert all(f":0{SEPARATOR}" in word for word in listing_command(SEPARATOR)[-1].split(","))


@pytest.mark.parametrize("state", ["REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"])
def test_states_that_hold_a_job(state: str) -> None:
    """It waits for a release, whatever its reason; only PENDING waits without one."""
    job = _parsed(State=state, Reason="None")
    assert job.waiting
    assert job.held
    assert not _parsed().held


def test_two_thousand_jobs_are_read_at_once() -> None:
    """A job costs the same among many as among few, so that `job list` takes its half second."""
    spent = []
    parse_listing(_row(), SEPARATOR)  # what is remembered from the first time on
    for count in (20, 2000):
        text = "".join(_row(ArrayJobID=str(number)) for number in range(count))
        jobs, made = calls(partial(parse_listing, text, SEPARATOR))
        assert len(jobs) == count
        spent.append(made / count)
    assert spent[1] <= spent[0] < 200


def test_the_order_is_slurms_own() -> None:
    """What runs, then by the tier of the partition, by priority, by id; unknown tiers are 1."""
    tiers = {n: PartitionLimits(name=n, priority_tier=t) for n, t in (("low", 1), ("high", 9))}
    jobs = [
        JobInfo(ref="1", state="PENDING", partitions=("low",), priority=50),
        JobInfo(ref="10", state="PENDING", partitions=("low",), priority=90),
        JobInfo(ref="9", state="PENDING", partitions=("low",), priority=90),
        JobInfo(ref="4", state="PENDING", partitions=("low", "high"), priority=7),
        JobInfo(ref="5", state="PENDING", partitions=("gone",), priority=60),
        JobInfo(ref="6", state="PENDING", partitions=("high",), priority=0),
        JobInfo(ref="8", state="RUNNING", started=20.0),
        JobInfo(ref="7", state="COMPLETING", started=30.0),
    ]
    order = [job.job_id for job in scheduling_order(jobs, tiers)]
    assert order == ["8", "7", "4", "6", "9", "10", "5", "1"]


NODE = (
    "NodeName=n3 Arch=x86_64 CPUAlloc=3 CPUEfctv=8 CPUTot=8 ActiveFeatures=a100,ib"
    " Gres=gpu:fake:4(S:0-1) GresDrain=N/A GresUsed=gpu:fake:3(IDX:0-2) OS=Linux 6.18 #1 SMP"
    " RealMemory=8000 AllocMem=300 State={state} Partitions=main,low "
    " CfgTRES=cpu=8,mem=8000M,billing=8,gres/gpu=4 AllocTRES=cpu=3,mem=300M {end}\n"
)


def _node(state: str, end: str = "") -> NodeInfo:
    return parse_nodes(NODE.format(state=state, end=end))[0]


def test_what_the_site_keeps_of_a_node_is_not_free() -> None:
    """CoreSpecCount and MemSpecLimit: jobs can have the rest, without which a node is full."""
    full = NODE.replace("CPUTot=8", "CPUTot=10").replace("=3 CPUE", "=8 CPUE")
    (node,) = parse_nodes(full.format(state="ALLOCATED", end="MemSpecLimit=1000"))
    assert node.cpus == node.cpus_used == 8
    assert (node.memory, node.memory_used) == (7000, 300)


def test_features_that_a_node_could_have() -> None:
    """Sites change the features of nodes, some for a job that asks for others."""
    (node,) = parse_nodes(
        NODE.format(state="IDLE", end="").replace(
            " Active", " AvailableFeatures=a100,ib,mig Active"
        )
    )
    assert (node.features, node.available_features) == (("a100", "ib"), ("a100", "ib", "mig"))


def test_a_node_with_gpus() -> None:
    """Slots are GPUs, counted though the site's accounting does not."""
    node = _node("MIXED")
    assert (node.name, node.partitions, node.features) == ("n3", ("main", "low"), ("a100", "ib"))
    assert (node.gpus, node.gpus_used, node.gpu_types) == (4, 3, ("fake",))
    assert node.gpus_in_use == (0, 1, 2)
    assert (node.cpus, node.cpus_used, node.memory, node.memory_used) == (8, 3, 8000, 300)
    assert (node.slots, node.slots_used, node.slots_free) == (4, 3, 1)


@pytest.mark.parametrize(
    ("state", "available"),
    [
        ("IDLE", True),
        ("MIXED+PLANNED", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("MIXED+DRAIN", False),
        ("IDLE*", False),
        ("DOWN*+DRAIN", False),
        ("IDLE+NEVER_HEARD_OF", False),
        ("FUTURE", False),
    ],
)
def test_what_is_free_on_a_node_that_takes_no_jobs_is_not_free(state: str, available: bool) -> None:
    """A flag that is not known does not count as harmless."""
    node = _node(state)
    assert node.available is available
    assert node.slots_free == (1 if available else 0)


def test_why_a_node_is_drained_is_free_text() -> None:
    """It may look like fields, and a comment may follow it."""
    end = "Reason=bad = disk State=DOWN [root@2026-11-23T06:28:56] Comment=hello [x] y=z"
    node = _node("IDLE+DRAIN", end)
    assert (node.state, node.reason) == ("IDLE+DRAIN", "bad = disk State=DOWN")
    assert _node("DOWN", "Comment=c Reason=Not responding [slurm@1795415188]").reason == (
        "Not responding"
    )
    assert _node("IDLE").reason == ""
