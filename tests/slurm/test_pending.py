"""The records that show why a job waits: read as Slurm prints them, with few calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from detslurm.slurm import JobInfo, command
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.pending import (
    dependency_ids,
    limits_in_use,
    parse_pending_record,
    parse_priorities,
    parse_reservations,
    parse_test,
    pending_details,
)
from detslurm.slurm.reasons import reason_of

RECORD = """\
JobId=27 JobName=x JobState=RUNNING Features=y
   UserId=alice(1001) GroupId=alice(1001) MCS_label=N/A
   Priority=13404 Nice=0 Account=ml QOS=normal
   JobState=PENDING Reason=ReqNodeNotAvail,_UnavailableNodes:n2 Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:00 TimeLimit=00:10:00 TimeMin=N/A
   SubmitTime=1795416115 EligibleTime=1795416116
   StartTime=1795419462 EndTime=Unknown Deadline=N/A
   SuspendTime=None SecsPreSuspend=0 LastSchedEval=1795417005 Scheduler=Backfill:*
   ReqNodeList=n[2-3] ExcNodeList=(null)
   NodeList= SchedNodeList=n[1-2]
   NumNodes=2-2 NumCPUs=4 NumTasks=2 CPUs/Task=2 ReqB:S:C:T=0:0:*:*
   MinCPUsNode=1 MinMemoryCPU=100M MinTmpDiskNode=0
   Features=(null) DelayBoot=00:00:00
   OverSubscribe=NO Contiguous=0 Licenses=matlab:2 Network=(null)
   TresPerNode=gres:gpu:a100:4
   WorkDir=/tmp StdOut=/tmp/JobState=FAILED
"""


def test_a_pending_record() -> None:
    """The scheduler's plan, and the options that ask for the same; names are no fields."""
    found = parse_pending_record(RECORD)
    assert found["evaluated"] == 1795417005.0
    assert set(found["options"]) == {
        *("--account=ml", "--qos=normal", "--licenses=matlab:2", "--nodes=2-2", "--ntasks=2"),
        *("--cpus-per-task=2", "--mem-per-cpu=100M", "--gres=gpu:a100:4", "--exclusive"),
        *("--nodelist=n[2-3]", "--requeue"),
    }
    halves = parse_pending_record(RECORD.replace("MinMemoryCPU=100M", "MinMemoryCPU=2.50G"))
    assert "--mem-per-cpu=2560M" in halves["options"]  # sbatch refuses 2.50G
    assert parse_pending_record(RECORD.replace("gres:gpu:a100:4", "gres/gpu:a100:4")) == found
    assert parse_pending_record(RECORD.replace("JobState=PENDING", "JobState=RUNNING")) == {}


def test_other_records() -> None:
    """Priorities, reservations and conditions."""
    (one,) = parse_priorities(
        "Unable to find jobs matching user/id(s) specified\n2130003|10070|0|0|0|70|10000|0|0|0|5\n"
    )
    factors = {"job size": 70, "partition": 10000, "nice": -5}
    assert (one.ref, one.total, one.factors) == ("2130003", 10070, factors)
    (one,) = parse_priorities("7|5400|0|150|0|0|0|0|0|cpu=1000,gres/gpu=4250|0\n")
    assert sum(one.factors.values()) == 5400
    assert parse_reservations("No reservations in the system\n") == ()
    line = (
        "ReservationName=maint StartTime=1795423312 EndTime=1795430512 Duration=02:00:00"
        " Nodes=n[4-5] NodeCnt=2 Flags=MAINT,IGNORE_JOBS Users=root Accounts=(null)\n"
    )
    (kept,) = parse_reservations(line)
    assert kept == ("maint", 1795423312.0, 1795430512.0, ("n4", "n5"), "maintenance")
    assert parse_reservations(line.replace("MAINT,", ""))[0].users == "root"
    assert dependency_ids("afterok:12(failed),afterany:13_*(unfulfilled),after:14+5") == [
        "12",
        "13",
        "14",
    ]


TABLE = """\
ClusterName=c Account=ml UserName=alice Partition= ParentAccount= MaxJobs=3(3)
ClusterName=c Account=ml UserName= ParentAccount=root(1) GrpTRES=gres/gpu=12(10) MaxJobs=1(1)
ClusterName=c Account=root UserName= ParentAccount= GrpTRES=gres/gpu=N(30)
ClusterName=c Account=bio UserName=alice Partition= ParentAccount= MaxJobs=1(1)
QOS=small(1) MaxTRESPJ=cpu=4 Account Limits= No Accounts \
User Limits= alice={MaxTRESPU=gres/gpu=2(1),gres/gpu:a100=1(1),cpu=9}
QOS=other(2) MaxTRESPJ=cpu=8 Account Limits= No Accounts User Limits= No Users
"""


def test_which_limits_count_for_a_job() -> None:
    """Those of its QOS, its account and the accounts above; of all GPU types."""
    job = JobInfo(ref="1", state="PENDING", user="alice", account="ml", qos="small")

    def named(code: str) -> list[tuple[str, int, int | None]]:
        limit = reason_of(code).limit
        assert limit is not None
        return [(q.holder, q.most, q.used) for q in limits_in_use(TABLE, job, limit)]

    whole, a100 = ("QOS small", 2, 1), ("QOS small", 1, 1)
    assert named("QOSMaxGRESPerUser") == [whole, a100]
    assert named("QOSMaxCpuPerJobLimit") == [("QOS small", 4, None)]
    assert named("AssocGrpGRES") == [("account ml", 12, 10)]
    assert named("AssocMaxJobsLimit") == [("account ml for alice", 3, 3)]
    assert named("QOSGrpMemLimit") == []


def test_the_answers_of_test_only() -> None:
    """A start, with what comes after it, or the refusal in Slurm's words."""
    accepted = (
        "sbatch: Job 7 to start at 1795421262 using 32 processors on nodes n1 in partition m\n"
    )
    assert parse_test(accepted + "  Preempts: 2130033\n") == 1795421262.0
    with pytest.raises(SlurmError, match="Requested node configuration"):
        parse_test("allocation failure: Requested node configuration is not available\n")


REASONS = (
    *("Priority", "Resources", "Licenses", "Reservation", "ReqNodeNotAvail", "BadConstraints"),
    *("QOSMaxGRESPerUser", "AssocGrpGRES", "PartitionTimeLimit", "PartitionDown", "JobHeldUser"),
    *("Dependency", "BeginTime", "JobArrayTaskLimit", "SomethingNew", "InvalidQOS"),
)


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("answers", [True, False])
def test_few_calls_and_none_is_needed(
    reason: str, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most three calls whatever the reason; what is refused is named, and breaks nothing."""
    calls: list[Sequence[str]] = []

    def run(argv: Sequence[str], **_: Any) -> str:
        calls.append(argv)
        if not answers:
            raise SlurmError("Access/permission denied")
        return ""

    monkeypatch.setattr(command, "run", run)
    job = JobInfo(
        ref="27", state="PENDING", reason=reason, user="root", partitions=("main",),
        dependency="afterok:12",
    )  # fmt: skip
    found = pending_details(job, "27", "26")
    assert 1 <= len(calls) <= 3
    assert len(found.unavailable) == (0 if answers else len(calls))
    assert all("permission denied" in one for one in found.unavailable)
