"""Reading what Slurm prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detslurm.slurm.end_reason import end_line, end_reason
from detslurm.slurm.history import parse_sacct, parse_scontrol
from detslurm.slurm.hostlist import (
    compress_hostlist,
    compress_indices,
    expand_hostlist,
    expand_indices,
)
from detslurm.slurm.interface import split_ref
from detslurm.slurm.job_energy import parse_energy
from detslurm.slurm.limits import gpu_counts, parse_limits, parse_record
from detslurm.slurm.preempted import parse_preempted
from detslurm.slurm.queue import parse_duration, parse_squeue, squeue_command, wanted


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3,07-09],x5", ["n1", "n2", "n3", "n07", "n08", "n09", "x5"]),
        ("r[1-2]n[08-10]", ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]),
        ("a-b-1,gpu-[3].site", ["a-b-1", "gpu-3.site"]),
    ],
)
def test_host_lists_expand(text: str, names: list[str]) -> None:
    """Ranges, leading zeros, several brackets, plain names."""
    assert expand_hostlist(text) == names


@pytest.mark.parametrize("text", ["n[1-3", "n1]", "n[1-[2]]", "n[a-b]"])
def test_a_bent_host_list_is_an_error(text: str) -> None:
    """ValueError, and nothing half right."""
    with pytest.raises(ValueError, match=r"host list|range"):
        expand_hostlist(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["login"], "login"),
        (["n4", "n2", "n1", "x5", "n"], "n[1-2,4],x5,n"),
        (["n08", "n09", "n10", "n8"], "n[08-10],n8"),
        (["r1n1.site", "r2n1.site"], "r1n1.site,r2n1.site"),
    ],
)
def test_names_of_hosts_are_compressed(names: list[str], text: str) -> None:
    """By the number at their end; what comes of it expands to the same."""
    assert compress_hostlist(names) == text
    assert sorted(expand_hostlist(text)) == sorted(names)


def test_array_indices_as_squeue_shows_them() -> None:
    """With and without brackets, throttle and step."""
    assert expand_indices("5") == [5]
    assert expand_indices("[3-5%3]") == [3, 4, 5]
    assert expand_indices("1,4-8:2%2") == [1, 4, 6, 8]


@given(st.sets(st.integers(0, 3000), min_size=1))
def test_compressed_indices_expand_to_the_same(indices: set[int]) -> None:
    """What sbatch gets is what was asked for."""
    assert expand_indices(compress_indices(indices)) == sorted(indices)


def test_squeue_rows_become_one_entry_an_element() -> None:
    """Pending ranges are spread out; a reason may hold the separator; torn lines are skipped."""
    text = (
        "12|12|3-5%3|PENDING|main|10|1-00:00:00|1700000000|1700000500|(null)|Odd | reason|/s/a|b\n"
        "14|12|0|RUNNING|main|10|10:00|1700000000|1700000300|n[1-2]|None|/x\n"
        "20|20|N/A|COMPLETED|low|0|5:00|1700000001|N/A|n1|None|/x\n"
        "torn|line\n"
    )
    found = parse_squeue(text)
    assert set(found) == {"12_3", "12_4", "12_5", "12_0", "20"}
    assert found["12_4"].reason == "Odd | reason"
    assert found["12_4"].folder == "/s/a|b"
    assert found["12_4"].time_left == 86400
    assert found["12_4"].expected_start == 1700000500.0
    assert found["12_0"].expected_start is None
    assert found["12_0"].nodes == ("n1", "n2")
    assert found["12_0"].running
    assert found["20"].final
    assert found["20"].time_left is None


def test_one_squeue_for_any_number_of_refs() -> None:
    """Elements of one array are one id on the command line."""
    refs = [f"12_{i}" for i in range(1000)] + ["13"]
    assert "--jobs=12,13" in squeue_command(refs)


def test_the_record_of_a_cancelled_rest_speaks_for_its_elements() -> None:
    """Slurm keeps one record without indices when all waiting elements are cancelled at once."""
    found = parse_squeue("39|39|N/A|CANCELLED|main|1|1:00|1|N/A|(null)|None\n")
    assert wanted(["39_7"], found)["39_7"].state == "CANCELLED"
    assert wanted(["39_7"], parse_squeue("39|39|N/A|RUNNING|main|1|1:00|1|1|n1|None\n")) == {}


@pytest.mark.parametrize("text", ["UNLIMITED", "NOT_SET", "INVALID", "", "5"])
def test_durations_that_are_none(text: str) -> None:
    """No number is made up."""
    assert parse_duration(text) is None


def test_sacct_rows() -> None:
    """Steps are skipped, ranges spread, `CANCELLED by 1000` is CANCELLED; the first part of a
    heterogeneous job speaks for it."""
    text = (
        "12_1|CANCELLED by 1000|0:15|main|1700000000|n1|/a|b\n"
        "12_1.batch|CANCELLED|0:15|main|1700000000|n1|/a\n"
        "12_[2-3%1]|PENDING|0:0|main|1700000000|None assigned|/a\n"
        "15|FAILED|3:0|main|Unknown|n[1-2]|/a\n"
        "20+0|RUNNING|0:0|main|1700000000|n1|/a\n"
        "20+1|FAILED|0:0|main|1700000000|n2|/a\n"
    )
    found = parse_sacct(text)
    assert set(found) == {"12_1", "12_2", "12_3", "15", "20"}
    assert found["12_1"].folder == "/a|b"
    assert wanted(["20"], found)["20"].state == "RUNNING"
    assert (found["12_1"].state, found["12_1"].signal) == ("CANCELLED", 15)
    assert (found["15"].exit_code, found["15"].nodes) == (3, ("n1", "n2"))


def test_the_energy_of_jobs() -> None:
    """Of all incarnations; the batch script's step and one within another step are in it already.
    Slurm prints 0 where nothing is measured, and a mark where it has no value."""
    text = (
        "12_1|1000|1900|90000\n"
        "12_1.batch|1000|1900|90000\n"
        "12_1.extern|1000|1900|90000\n"
        "12_1.0|1010|1500|40000\n"
        "12_1.1|1020|1400|30000\n"  # a launcher's, within step 0
        "12_1.2|1500|1890|30000\n"
        "12_1.0|3000|3100|5000\n"  # after a requeue
        "13.0|1000|1100|0\n"
        "14.0|1000|1100|18446744073709551614\n"
        "15.0|1000|Unknown|77\n"
        "16.0|1000|1100|\n"
        "sacct: error: no such thing\n"
    )
    assert parse_energy(text) == {"12_1": 75000.0}


def test_scontrol_records() -> None:
    """Without accounting, the controller's own memory: restarts and exit codes, too."""
    text = (
        "JobId=11 ArrayJobId=10 ArrayTaskId=0 ArrayTaskThrottle=2 JobName=a b=c UserId=root(0)\n"
        "   JobState=FAILED Reason=None\n   Restarts=2 ExitCode=3:0\n   Partition=main\n"
        "   NodeList=n1\n   SubmitTime=1700000000\n\n"
        "JobId=39 ArrayJobId=39 ArrayTaskId=4294967294 JobName=x\n   JobState=CANCELLED\n"
        "JobId=20 HetJobId=20 HetJobOffset=0 JobName=s.sh\n   HetJobIdSet=20-21\n"
        "   JobState=RUNNING\n"
    )
    found = parse_scontrol(text)
    assert found["20"].running
    assert (found["10_0"].restarts, found["10_0"].exit_code) == (2, 3)
    assert found["10_0"].reason == ""
    assert found["39"].state == "CANCELLED"


@pytest.mark.parametrize(
    ("times", "preempted"),
    [
        ("StartTime=1700000000 PreemptTime=None", False),
        ("StartTime=1700000000 PreemptTime=1700000005", True),
        ("StartTime=1700000009 PreemptTime=1700000005", False),  # that of an earlier start
        ("StartTime=Unknown", False),
    ],
)
def test_a_preemption_is_in_the_record_of_the_job(times: str, preempted: bool) -> None:
    """From its first moment on, while the job still runs."""
    text = f"JobId=11 JobName=x\n   JobState=RUNNING Reason=None\n   {times}\n"
    assert parse_preempted(text) is preempted


@pytest.mark.parametrize("field", ["JobName", "Comment", "WorkDir", "StdOut"])
def test_names_that_look_like_fields(field: str) -> None:
    """Free text never counts as a field; a line break in it makes the field unknown at most."""
    first = "JobId=11 JobName=x JobState=FAILED\n   UserId=a(1)\n   JobState=RUNNING Reason=None\n"
    assert parse_scontrol(f"{first}   {field}2=x\n   {field}=x JobState=FAILED\n")["11"].running
    assert parse_scontrol(f"{first}   {field}=x\n   JobState=FAILED Restarts=3\n") == {}


def test_records_may_hold_spaces_in_values() -> None:
    """A value ends where the next key begins."""
    record = parse_record("A=1 Name=my job here TRES:x=cpu=1,mem=2 Last=")
    assert record["Name"] == "my job here"
    assert record["A"] == "1"


@pytest.mark.parametrize(
    ("gres", "counts"),
    [
        ("(null)", {}),
        ("gpu:4", {"": 4}),
        ("gpu", {"": 1}),
        ("gpu:a100:4(S:0-1),shard:8", {"a100": 4}),
        ("gpu:a100:2,gpu:v100:2(IDX:0-1)", {"a100": 2, "v100": 2}),
        ("gpu:fake", {"fake": 1}),
    ],
)
def test_gpu_counts(gres: str, counts: dict[str, int]) -> None:
    """Types and counts of a node's GPUs."""
    assert gpu_counts(gres) == counts


def test_limits_of_a_site() -> None:
    """Times in minutes, the partition's preemption, the largest node of each."""
    limits = parse_limits(
        "ClusterName = big\nMaxArraySize            = 501\nKillWait = 30 sec\nJobRequeue = 0\n"
        "PreemptMode = REQUEUE\n"
        "SchedulerParameters = bf_interval=2,max_array_tasks=400\nGresTypes = gpu\n"
        "PriorityMaxAge          = 7-00:00:00\nPriorityWeightAge       = 16800\n"
        "AccountingStorageType = accounting_storage/none\nAccountingStorageTRES = cpu,gres/gpu\n",
        "PartitionName=a Default=YES MaxTime=2-00:00:00 DefaultTime=00:30:00 MaxNodes=4"
        " PreemptMode=CANCEL GraceTime=60 State=UP Nodes=n[1-2] PriorityTier=3\n"
        "PartitionName=b Default=NO MaxTime=UNLIMITED DefaultTime=NONE MaxNodes=UNLIMITED"
        " State=DOWN Nodes=(null)\n",
        "a|64|gpu:a100:4\na|128+|(null)\nb|8|(null)\n",
    )
    a, b = limits.partition(None), limits.partition("b")
    assert a is not None
    assert b is not None
    assert (limits.max_array_size, limits.max_array_tasks, limits.kill_wait) == (501, 400, 30)
    assert (limits.job_requeue, limits.accounting, limits.tres_gpus) == (False, False, True)
    assert limits.age_points == 100
    assert parse_limits("PriorityType = priority/basic\n", "", "").age_points == 0
    assert (a.max_time, a.default_time, a.max_nodes) == (2880, 30, 4)
    assert (a.preempt_mode, a.grace_time) == ("CANCEL", 60)
    assert (a.cpus_per_node, a.gpus_per_node, a.gpu_types) == (128, 4, ("a100",))
    assert (b.max_time, b.up, b.preempt_mode, b.nodes) == (None, False, "REQUEUE", ())
    assert limits.partition("nope") is None


T = "2026-11-22T13:24:22"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (f"CANCELLED AT {T} ***", "cancelled"),
        (f"CANCELLED AT {T} DUE to SIGNAL Terminated ***", "cancelled"),
        (f"CANCELLED AT {T} DUE to SIGNAL Killed ***", "cancelled"),
        (f"CANCELLED AT {T} DUE TO PREEMPTION ***", "preempted"),
        (f"CANCELLED AT {T} DUE TO TIME LIMIT ***", "time_limit"),
        (f"CANCELLED AT {T} DUE TO JOB REQUEUE ***", "requeued"),
        (
            f"CANCELLED AT {T} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
            "node_failed",
        ),
        (f"CANCELLED AT {T} DUE TO TASK FAILURE ***", None),
        (f"CANCELLED AT {T} DUE TO PREEMPTION OF THE MOON ***", None),
        ("FAILED (non-zero exit code or other failure mode) ***", None),
        (f"UNCORRECTABLE MEMORY ERROR AT {T} ***", None),
        (f"CANCELLED AT {T} DUE TO", None),
    ],
)
@pytest.mark.parametrize("prefix", ["slurmstepd-n1: error: ", f"[{T}.267] error: "])
def test_slurms_words_for_the_end_of_a_job(
    tmp_path: Path, said: str, cause: str | None, prefix: str
) -> None:
    """All forms from 22.05 to 26.05; what is not known is no cause."""
    output = tmp_path / "slurm-12.out"
    output.write_text(f"hello\n{prefix}*** JOB 12 ON n1 {said}\nbye\n")
    assert end_reason("12", output) == cause


def test_the_first_cause_about_this_very_job_counts(tmp_path: Path) -> None:
    """Behind a remembered place, with any number of others' lines around it."""
    output = tmp_path / "slurm-12.out"
    output.write_text(end_line("12", "n1", "requeued", 0.0))
    since = output.stat().st_size
    assert end_reason("12", output, since) is None, "a line of an earlier run"
    others = "".join(end_line(str(n), "n1", "cancelled", 0.0) for n in range(100, 2000))
    with output.open("a") as file:
        file.write(others + end_line("12", "n1", "preempted", 0.0))
        file.write(others + end_line("12", "n1", "time_limit", 0.0) + others)
    assert end_reason("12", output, since) == "preempted"
    assert end_reason("1", output, since) is None
    output.write_text(end_line("12", "n1", "cancelled", 0.0))
    assert end_reason("12", output, since) == "cancelled", "the output was emptied"
    assert end_reason("12", tmp_path / "missing") is None
    for cause in ("cancelled", "preempted", "time_limit", "requeued", "node_failed"):
        output.write_text(end_line("3_4", "n", cause, 0.0))
        assert end_reason("3_4", output) == cause


@pytest.mark.parametrize(
    ("printed", "cause"),
    [
        # Seen with 22.05 while a file server was away; 25.05 and later name a signal.
        ([f"DUE TO TIME LIMIT @{T}", f"@{T}"], "time_limit"),
        ([f"DUE TO PREEMPTION @{T}", f"DUE to SIGNAL Killed @{T}"], "preempted"),
        ([f"@{T}", f"DUE to SIGNAL Killed @{T}"], "cancelled"),
        # `scancel --signal=TERM --batch` ends no job; its time limit does, later.
        ([f"@{T}", f"DUE TO TIME LIMIT @{T}"], "time_limit"),
        ([f"DUE TO THE MOON @{T}", f"@{T}"], None),
    ],
)
def test_a_repeated_kill_is_no_cause(tmp_path: Path, printed: list[str], cause: str | None) -> None:
    """Slurm kills again what did not answer: its second line says nothing of the first one's."""
    output = tmp_path / "slurm-12.out"
    parts = (text.partition("@") for text in printed)
    lines = (f"CANCELLED AT {at} {due}".strip() for due, _, at in parts)
    output.write_text("".join(f"slurmstepd-n1: error: *** JOB 12 ON n1 {x} ***\n" for x in lines))
    assert end_reason("12", output) == cause


@pytest.mark.parametrize("ref", ["", "x", "1_", "1_x", "1.2", "-1", "1 2", "$(x)"])
def test_bent_references_are_refused(ref: str) -> None:
    """A reference reaches a command line only when it is one."""
    with pytest.raises(ValueError, match="not a job reference"):
        split_ref(ref)
    assert split_ref("12_3") == ("12", 3)
