"""How many more jobs are allowed, and what no job can ever have."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from detslurm.slurm import JobRequest, command, qos
from detslurm.slurm.allowance import Allowance, Charge
from detslurm.slurm.arrays import first_elements, plan_arrays
from detslurm.slurm.interface import ClusterLimits, PartitionLimits
from detslurm.slurm.job_quotas import ask_allowance, needs
from detslurm.slurm.qos import Association, Bound, JobQuota, Qos, QuotaTable, UserQuotas
from detslurm.slurm.quota_limits import allowance
from tests.slurm.test_qos import recorded

CHARGE = Charge("alice", "lab", "main", ("normal",))
ROOT = Association("root")
LAB = Association("lab", parent="root")
OWN = Association("lab", user="alice")


PER_USER = "MaxSubmitJobsPerUser=20 of QOS normal"
IN_MAIN = Association("lab", "main", user="alice", own=JobQuota(submitted=Bound(3)))


def submitted(most: int, used: int | None = None) -> JobQuota:
    return JobQuota(submitted=Bound(most, used))


def allowed(
    known: dict[str, Qos] | None = None, *associations: Association, **need: int
) -> Allowance:
    charge = replace(CHARGE, qos=tuple(known or {}))
    return allowance(charge, QuotaTable(known or {}, associations or (ROOT, LAB, OWN)), need)


@pytest.mark.parametrize(
    ("known", "associations", "room", "limit"),
    [
        ({}, (), None, ""),
        ({"normal": Qos()}, (), None, ""),
        (
            {"normal": Qos(per_user=submitted(20, 3))},
            (),
            17,
            PER_USER,
        ),
        ({"normal": Qos(per_user=submitted(20, 25))}, (), 0, PER_USER),
        ({"normal": Qos(per_user=submitted(20))}, (), 20, PER_USER),
        (
            {"normal": Qos(per_user=submitted(20), accounts={"lab": submitted(30, 25)})},
            (),
            5,
            "MaxSubmitJobsPerAccount=30 of QOS normal",
        ),
        ({"normal": Qos(group=submitted(9, 2))}, (), 7, "GrpSubmitJobs=9 of QOS normal"),
        # The first that has a limit of the kind counts.
        (
            {"first": Qos(per_user=submitted(50)), "second": Qos(per_user=submitted(2))},
            (),
            50,
            "MaxSubmitJobsPerUser=50 of QOS first",
        ),
        # Of an association only what no QOS limits.
        (
            {"normal": Qos()},
            (LAB, replace(OWN, own=submitted(8, 1))),
            7,
            "MaxSubmitJobs=8 of your association with account lab",
        ),
        (
            {"normal": Qos(per_user=submitted(20))},
            (LAB, replace(OWN, own=submitted(8, 1))),
            20,
            PER_USER,
        ),
        (
            {"normal": Qos()},
            (replace(ROOT, group=submitted(100, 96)), replace(LAB, group=submitted(50)), OWN),
            4,
            "GrpSubmitJobs=100 of account root",
        ),
        # That of the partition before the one for all.
        (
            {"normal": Qos()},
            (replace(OWN, own=submitted(8)), IN_MAIN),
            3,
            "MaxSubmitJobs=3 of your association with account lab",
        ),
    ],
)
def test_how_many_more(
    known: dict[str, Qos], associations: tuple[Association, ...], room: int | None, limit: str
) -> None:
    found = allowed(known, *associations)
    assert (found.room, found.limit) == (room, limit)


def test_what_makes_a_trial_impossible() -> None:
    """A limit below what one job needs; one that lets some run at once is no problem."""
    gpus = {"gres/gpu": Bound(4)}
    known = {"normal": Qos(per_job=gpus)}
    refused = allowed(known, **{"gres/gpu": 8}).problem
    assert str(refused).startswith(
        "a trial needs 8 GPUs, and QOS normal allows 4 (MaxTRESPerJob gres/gpu=4): it would never"
    )
    assert allowed(known, **{"gres/gpu": 4}).problem is None
    assert allowed(known, cpu=8).problem is None
    lab = replace(LAB, group=JobQuota(tres={"gres/gpu": Bound(6, 5)}))
    assert "account lab allows 6" in str(allowed({}, lab, OWN, **{"gres/gpu": 8}).problem)
    some = allowed({}, lab, OWN, **{"gres/gpu": 2})
    assert (some.at_once, some.at_once_limit) == (3, "GrpTRES gres/gpu=6 of account lab")


def test_what_a_newer_version_has_recorded() -> None:
    """Fields that this one does not know are skipped."""
    charge = CHARGE.to_dict() | {"reservation": "r"}
    assert Charge.from_dict(json.loads(json.dumps(charge))) == CHARGE
    request = REQUEST.to_dict() | {"hugepages": [1]}
    assert JobRequest.from_dict(json.loads(json.dumps(request))) == REQUEST


def test_a_recorded_controller() -> None:
    table = qos.parse_assoc_mgr(recorded("assoc_mgr-22.05"), "alice")
    charge = Charge("alice", "phd", "main", ("normal",))
    assert Charge.from_dict(charge.to_dict()) == charge
    found = allowance(charge, table, {"gres/gpu": 2})
    assert (found.room, found.limit) == (10, PER_USER)
    assert found.at_once == 3
    tiny = allowance(replace(charge, qos=("tiny",)), table, {"gres/gpu": 5})
    assert "QOS tiny allows 4" in str(tiny.problem)


REQUEST = JobRequest(name="x", command=("true",), folder=Path("/"))
STRICT = ClusterLimits(
    enforces_qos=True, partitions={"main": PartitionLimits("main", default=True)}
)
SILENT = "QOS=normal(1) MaxWallPJ= Account Limits=No Accounts User Limits=No Users\n"
MINE = "ClusterName=c Account=phd UserName=alice(1001) Partition= DefAssoc=Yes MaxSubmitJobs=\n"


@pytest.mark.parametrize(
    ("controller", "calls"),
    [
        (recorded("assoc_mgr-22.05"), ["assoc", "assoc_mgr"]),
        (SILENT + MINE, ["assoc", "assoc_mgr", "qos"]),
    ],
)
def test_as_little_is_asked_as_need_be(
    monkeypatch: pytest.MonkeyPatch, controller: str, calls: list[str]
) -> None:
    """Of a user who has had no job the controller does not show what a QOS allows."""
    asked: list[str] = []

    def answer(argv: list[str], **_: object) -> str:
        asked.append(next(word for word in argv if word in ("assoc", "assoc_mgr", "qos")))
        return controller if asked[-1] == "assoc_mgr" else recorded(f"{asked[-1]}-22.05")

    monkeypatch.setattr(command, "run", answer)
    quotas = UserQuotas("c")
    vars(quotas)["user"] = "alice"
    found = ask_allowance(REQUEST, STRICT, quotas)
    assert found.limit == PER_USER
    assert asked == calls


@pytest.mark.parametrize("site", [ClusterLimits(), replace(STRICT, changes_jobs=True)])
def test_nothing_is_asked_where_nothing_can_be_known(
    monkeypatch: pytest.MonkeyPatch, site: ClusterLimits
) -> None:
    """No limits are enforced, or a plugin of the site may choose another QOS."""
    monkeypatch.setattr(command, "run", pytest.fail)
    assert ask_allowance(REQUEST, site, UserQuotas("c")) == Allowance()


def test_what_a_job_needs_at_least() -> None:
    assert needs(REQUEST.with_changes(slots=4)) == {"node": 1, "cpu": 4}
    gpus = REQUEST.with_changes(slots=4, slot_type="cuda", nodes=2)
    assert needs(gpus) == {"node": 2, "cpu": 2, "gres/gpu": 4}


@pytest.mark.parametrize(
    ("message", "limited"),
    [
        ("QOSMaxSubmitJobPerUserLimit\nBatch job submission failed: Job violates", True),
        ("MaxSubmitJobsPerAccount\nBatch job submission failed: Job violates", True),
        ("AssocMaxSubmitJobLimit\nBatch job submission failed: Job violates", True),
        ("AssocGrpSubmitJobsLimit\nBatch job submission failed: Job violates", True),
        (
            "Batch job submission failed: Job violates accounting/QOS policy"
            " (job submit limit, user's size and/or time limits)",
            True,
        ),
        (
            "QOSMaxGRESPerUser\nBatch job submission failed: Job violates accounting/QOS policy"
            " (job submit limit, user's size and/or time limits)",
            False,
        ),
        ("Batch job submission failed: Invalid partition name specified", False),
    ],
)
def test_which_refusals_fewer_jobs_may_avoid(message: str, limited: bool) -> None:
    assert command.is_submit_limit(message) is limited


def test_the_first_elements_of_arrays() -> None:
    arrays = plan_arrays(25, max_array_size=10, throttle=2)
    kept = first_elements(arrays, 12)
    assert [one.count for one in kept] == [9, 3]
    assert kept[0] == arrays[0]
    assert first_elements(arrays, 25) == arrays
