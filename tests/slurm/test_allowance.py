"""Limits of partitions, QOS and accounts, by Slurm's own text and by a real controller."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from detslurm.slurm import Allowance, JobRequest, SlurmCluster, command
from detslurm.slurm.allowance import ask_again, ask_allowance, needs
from detslurm.slurm.arrays import first_elements, plan_arrays
from detslurm.slurm.interface import Charge, ClusterLimits, PartitionLimits
from detslurm.slurm.pending_details import QuotaLimit
from detslurm.slurm.quotas import ask_controller, quotas_of
from tests.cluster import Cluster

RECORDED = Path(__file__).parent / "recorded" / "assoc_mgr-22.05.txt"
REQUEST = JobRequest(name="x", command=("true",), folder=Path("/"))
MAIN = PartitionLimits("main", default=True)
STRICT = ClusterLimits(cluster="c", enforces_qos=True, partitions={"main": MAIN})


def account(name: str, parent: str = "", limits: str = "") -> str:
    return f"ClusterName=c Account={name} UserName= Partition= ParentAccount={parent} {limits}"


def own(limits: str = "", account: str = "lab", partition: str = "", default: str = "Yes") -> str:
    return (
        f"ClusterName=c Account={account} UserName=alice(1001) Partition={partition}"
        f" ParentAccount= DefAssoc={default} {limits}"
    )


def qos(name: str, limits: str = "", users: str = "No Users", accounts: str = "No Accounts") -> str:
    return f"QOS={name}(1) {limits} Account Limits= {accounts} User Limits= {users}"


PER_USER = "alice(1001)={MaxSubmitJobsPU=20(3)}"


class Site:
    """Slurm's answers about limits, and the programs that were asked."""

    def __init__(
        self, *controller: str, default: str = "", allowed: str = "normal", flags: str = ""
    ) -> None:
        self.controller = "\n".join(controller)
        self.associations, self.flags = f"|{default}|{allowed}\n", flags
        self.asked: list[str] = []

    def run(self, argv: Sequence[str], **_: object) -> str:
        self.asked.append(argv[0])
        if argv[0] == "scontrol":
            return self.controller
        return self.flags if "qos" in argv else self.associations


@pytest.fixture(autouse=True)
def alice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detslurm.slurm.allowance.user_name", lambda: "alice")


def allowed(
    monkeypatch: pytest.MonkeyPatch,
    site: Site,
    request: JobRequest = REQUEST,
    limits: ClusterLimits = STRICT,
) -> Allowance:
    monkeypatch.setattr(command, "run", site.run)
    return ask_allowance(request, limits)


ROOT, LAB = account("root"), account("lab", "root")


@pytest.mark.parametrize(
    ("controller", "room", "limit"),
    [
        ((LAB, own(), qos("normal")), None, ""),
        ((LAB, own(), qos("normal", users=PER_USER)), 17, "MaxSubmitJobsPerUser=20 of QOS normal"),
        (
            (own(), qos("normal", users="bob(7)={MaxSubmitJobsPU=20(25)}")),
            None,
            "",
        ),
        (
            (own(), qos("normal", users=PER_USER, accounts="lab={MaxSubmitJobsPA=30(25)}")),
            5,
            "MaxSubmitJobsPerAccount=30 of QOS normal",
        ),
        ((own(), qos("normal", "GrpSubmitJobs=9(9)")), 0, "GrpSubmitJobs=9 of QOS normal"),
        # Of an association only what no QOS limits.
        (
            (own("MaxSubmitJobs=8(1)"), qos("normal")),
            7,
            "MaxSubmitJobs=8 of account lab for alice",
        ),
        (
            (own("MaxSubmitJobs=8(1)"), qos("normal", users=PER_USER)),
            17,
            "MaxSubmitJobsPerUser=20 of QOS normal",
        ),
        (
            (
                account("root", "", "GrpSubmitJobs=100(96)"),
                account("lab", "root(1)", "GrpSubmitJobs=50(3) MaxSubmitJobs=1(1)"),
                account("other", "root(1)", "GrpSubmitJobs=1(1)"),
                own(),
                qos("normal"),
            ),
            4,
            "GrpSubmitJobs=100 of account root",
        ),
    ],
)
def test_how_many_more(
    monkeypatch: pytest.MonkeyPatch, controller: tuple[str, ...], room: int | None, limit: str
) -> None:
    site = Site(*controller)
    found = allowed(monkeypatch, site)
    assert (found.room, found.limit) == (room, limit)
    assert found.charge == Charge("alice", "lab", "main", ("normal",))
    assert site.asked == ["scontrol", "sacctmgr"]
    assert ask_again(asdict(found.charge)) == replace(found, problem=None)
    site.associations = f"Welcome | to | the | cluster\n{site.associations}"
    assert allowed(monkeypatch, site) == found, "a line of a site's wrapper is no association"


def test_unknown_limits_refuse_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An account or a QOS that is not known, a plugin that may change the job."""
    limit = qos("normal", "MaxTRESPJ=cpu=1 GrpSubmitJobs=1(1)")
    four = REQUEST.with_changes(slots=4)
    assert "QOS normal allows 1" in str(allowed(monkeypatch, Site(own(), limit), four).problem)
    two_accounts = Site(own(default="No"), own(account="bio", default="No"), limit)
    no_default = Site(own(), limit, default="", allowed="small,large")
    for site in (two_accounts, no_default, Site(limit)):
        assert allowed(monkeypatch, site, four) == Allowance()
    monkeypatch.setattr(command, "run", pytest.fail)
    assert ask_allowance(four, replace(STRICT, changes_jobs=True)) == Allowance()


def test_jobs_that_could_never_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a QOS or an account grants; where one of two QOS grants it, nothing is refused."""
    gpus = REQUEST.with_changes(slots=8, slot_type="cuda")
    small, large = (qos(name, f"MaxTRESPJ=gres/gpu={most}") for name, most in (("s", 4), ("l", 9)))
    site = Site(own(), small, large, default="s")
    refused = allowed(monkeypatch, site, gpus).problem
    assert str(refused).startswith(
        "a trial needs 8 GPUs, and QOS s allows 4 (MaxTRESPerJob gres/gpu=4): it would never start"
    )
    assert allowed(monkeypatch, site, gpus.with_changes(slots=4)).problem is None
    assert allowed(monkeypatch, site, gpus.with_changes(qos="l")).problem is None
    of_partition = replace(STRICT, partitions={"main": replace(MAIN, qos="l")})
    assert allowed(monkeypatch, site, gpus, of_partition).problem is None
    site = Site(account("lab", "", "GrpTRES=gres/gpu=6(5)"), own(), qos("normal"))
    assert "account lab allows 6" in str(allowed(monkeypatch, site, gpus).problem)


@pytest.mark.parametrize(
    ("minutes", "options", "here", "controller", "whose"),
    [
        (30, (), replace(MAIN, max_time=30), "", None),
        (31, (), replace(MAIN, max_time=30), "", "partition main"),
        (0, (), replace(MAIN, max_time=30), "", "partition main"),
        (None, (), replace(MAIN, max_time=30, default_time=60), "", "partition main"),
        (31, ("--time=9",), replace(MAIN, max_time=30), "", None),
        (31, ("-q", "long"), replace(MAIN, max_time=30), "", None),
        (21, (), MAIN, qos("normal", "MaxWallPJ=20"), "QOS normal"),
        (20, (), MAIN, qos("normal", "MaxWallPJ=20"), None),
        (31, (), MAIN, own("MaxWallPJ=30"), "account lab for alice"),
        (31, (), MAIN, own("MaxWallPJ=30") + "\n" + qos("normal", "MaxWallPJ=60"), None),
    ],
)
def test_time_limits_that_are_never_granted(
    monkeypatch: pytest.MonkeyPatch,
    minutes: int | None,
    options: tuple[str, ...],
    here: PartitionLimits,
    controller: str,
    whose: str | None,
) -> None:
    """The partition's unless a QOS lifts it; else that of a QOS, or of the account without one."""
    site = Site(own(), controller, flags="long|DenyOnLimit,PartitionTimeLimit\nnormal|\n")
    request = REQUEST.with_changes(time_minutes=minutes, sbatch_args=options)
    limits = replace(STRICT, partitions={"main": here})
    problem = allowed(monkeypatch, site, request, limits).problem
    assert (problem is None) is (whose is None)
    assert whose is None or f"{whose} gives a job at most" in str(problem)


@pytest.mark.parametrize(
    ("account", "more", "variable", "charged"),
    [
        ("small", (), None, "small"),
        ("large", ("--account=small",), None, "small"),
        ("small", ("-HA small", "--acco 'large'"), None, "large"),
        (None, ("-A large",), "small", "small"),  # a variable overrules the script
        ("large", (), "small", "large"),  # and is removed where slurm.account is set
    ],
)
def test_the_account_that_counts(
    monkeypatch: pytest.MonkeyPatch,
    account: str | None,
    more: tuple[str, ...],
    variable: str | None,
    charged: str,
) -> None:
    """As sbatch will see it: of slurm.account, sbatch_args and SBATCH_ACCOUNT."""
    if variable:
        monkeypatch.setenv("SBATCH_ACCOUNT", variable)
    request = JobRequest(name="x", command=("true",), folder=Path("/"), account=account)
    found = allowed(monkeypatch, Site(own()), request.with_changes(sbatch_args=more))
    assert found.charge is not None and found.charge.account == charged


def test_a_recorded_controller() -> None:
    """Limits with their use; a limit of none is no limit of 0."""
    charge = Charge("1001", "phd", "main", ("tiny", "normal"))
    found = quotas_of(RECORDED.read_text(), charge)
    assert QuotaLimit("QOS tiny", "MaxWallPerJob", "job", "wall", 60, None) in found
    assert QuotaLimit("QOS tiny", "MaxTRESPerJob gres/gpu", "job", "gres/gpu", 4, None) in found
    assert QuotaLimit("QOS tiny", "MaxSubmitJobsPerAccount", "account", "submitted", 30, 1) in found
    assert QuotaLimit("QOS normal", "MaxSubmitJobsPerUser", "user", "submitted", 20, 10) in found
    assert QuotaLimit("account phd", "GrpTRES gres/gpu", "group", "gres/gpu", 6, 1) in found
    assert len([limit for limit in found if not limit.of_qos]) == 3
    mine = quotas_of(RECORDED.read_text(), replace(charge, user="alice"))
    assert QuotaLimit("account phd for alice", "MaxJobs", "own", "jobs", 7, 8) in mine
    memory = quotas_of(qos("tiny", "MaxTRESPJ=mem=1.50T"), charge)
    assert memory[0].most == 1572864


def test_a_real_controller_is_understood(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    assert "QOS=normal" in ask_controller("nobody")


def test_a_silent_daemon_delays_no_submission(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its answer, which would refuse the job, comes too late: the limits are unknown."""
    os.mkfifo(tmp_path / "never")
    script = tmp_path / "scontrol"
    script.write_text(f"#!/bin/bash\nread -t 20 <>{tmp_path}/never\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("detslurm.slurm.quotas._PATIENCE", 0.3)
    cluster = SlurmCluster()
    vars(cluster)["_limits"] = STRICT
    assert cluster.allowance(REQUEST) == Allowance()


def test_a_charge_that_a_newer_version_has_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields that this one does not know are skipped."""
    charge = Charge("alice", "lab", "main", ("normal",))
    monkeypatch.setattr(command, "run", Site().run)
    assert ask_again(asdict(charge) | {"reservation": "r"}).charge == charge
    assert JobRequest.from_dict(REQUEST.to_dict() | {"hugepages": [1]}) == REQUEST


def test_resources_that_a_job_needs_at_least() -> None:
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
