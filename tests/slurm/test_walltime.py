"""Time limits that no partition and no QOS grants."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from detslurm.slurm import JobRequest, SlurmCluster, command
from detslurm.slurm.interface import ClusterLimits, PartitionLimits
from detslurm.slurm.job_quotas import applicable
from detslurm.slurm.qos import Association, Qos, UserQuotas
from detslurm.slurm.walltime import granted, refusal, time_problem


def qos(name: str, wall: str = "") -> str:
    """A line of `sacctmgr show qos`."""
    return f"{name}||{wall}||||||||||\n"


def association(account: str, wall: str = "") -> str:
    """A line of `sacctmgr show assoc`."""
    return f"{account}|||normal|{wall}|alice||||||\n"


SHORT = PartitionLimits(name="short", max_time=30)
OPEN = PartitionLimits(name="open")
OWNED = PartitionLimits(name="owned", qos="of_partition")
KNOWN = {
    "normal": Qos(),
    "small": Qos(20),
    "of_partition": Qos(40),
    "above": Qos(60, frozenset({"OverPartQOS"})),
    "below": Qos(60),
}
LONG = {**KNOWN, "long": Qos(flags=frozenset({"DenyOnLimit", "PartitionTimeLimit"}))}


@pytest.mark.parametrize(
    ("asked", "here", "known", "qos", "whose"),
    [
        (30, SHORT, {}, None, None),
        (31, SHORT, {}, None, "partition short"),
        (math.inf, SHORT, KNOWN, "normal", "partition short"),
        (31, SHORT, LONG, "normal", "partition short"),
        (31, SHORT, LONG, "long", None),
        (31, SHORT, LONG, None, None),  # perhaps the default one lifts the limit
        (31, None, KNOWN, "normal", None),
        (21, OPEN, KNOWN, "small", "QOS small"),
        (20, OPEN, KNOWN, "small", None),
        (21, OPEN, KNOWN, None, None),
        (41, OWNED, KNOWN, "normal", "the QOS of partition owned"),
        (41, OWNED, KNOWN, None, "the QOS of partition owned"),
        (30, OWNED, KNOWN, "small", None),  # the partition's comes first
        (41, OWNED, KNOWN, "below", "the QOS of partition owned"),
        (41, OWNED, KNOWN, "above", None),
        (61, OWNED, KNOWN, "above", "QOS above"),
    ],
)
def test_whose_limit_is_in_the_way(
    asked: float, here: PartitionLimits | None, known: dict[str, Qos], qos: str | None, whose: str
) -> None:
    """In Slurm's order; where it is not known which QOS counts, nothing is refused."""
    said = refusal(asked, here, known, qos)
    assert said is None if whose is None else str(said).startswith(f"{whose} gives")


@pytest.mark.parametrize(
    ("asked", "qos", "own", "refused"),
    [
        (31, "normal", 30, True),
        (30, "normal", 30, False),
        (31, "normal", None, False),
        (math.inf, "normal", 30, True),
        (31, "above", 30, False),  # a QOS with a limit of its own counts in its place
        (31, None, 30, False),  # perhaps one that grants more
        (61, None, 30, True),
    ],
)
def test_the_limit_of_an_association(
    asked: float, qos: str | None, own: float | None, refused: bool
) -> None:
    """It counts where no QOS has a limit."""
    said = refusal(asked, OPEN, KNOWN, qos, own)
    assert (said == "your account gives a job at most 30 minutes") is refused


def test_which_association_counts() -> None:
    """The partition's before the account's; of several accounts the most generous."""
    wide, low = Association("lab"), Association("lab", "low", longest=7)
    other = Association("lab2", longest=25)
    found = [low, wide, other]
    assert applicable(found, "lab", "low") == [low]
    assert applicable(found, "lab", "main") == [wide]
    assert applicable(found, None, None) == [wide, other]
    assert granted([wide, other]) is None
    assert granted([low, other]) == 25
    assert granted([]) is None


@pytest.mark.parametrize(("minutes", "who"), [(25, "slurm.time asks for 25"), (None, "it has 60")])
def test_a_default_time_limit_counts_like_one_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, minutes: int | None, who: str
) -> None:
    """The partition's own default may be more than the QOS grants; unlimited sites pay no call."""
    calls: list[str] = []

    def said(argv: list[str], **_: object) -> str:
        calls.append(argv[0])
        if argv[0] == "scontrol":
            return "QOS=small(2) MaxWallPJ=20 MaxTRESPJ=\n"
        if "assoc" in argv:
            return association("lab")
        return f"{qos('normal')}{qos('small', '00:20:00')}"

    monkeypatch.setattr(command, "run", said)
    request = JobRequest(name="x", command=("true",), folder=Path("/"), qos="small")
    request = request.with_changes(time_minutes=minutes)
    main = PartitionLimits(name="main", default=True, default_time=60)
    strict = ClusterLimits(enforces_qos=True, partitions={"main": main})
    assert who in str(time_problem(request, strict, UserQuotas("")))
    assert calls == ["sacctmgr", "scontrol", "sacctmgr"]
    assert time_problem(request, replace(strict, enforces_qos=False), UserQuotas("")) is None
    assert calls == ["sacctmgr", "scontrol", "sacctmgr"]


@pytest.mark.parametrize("given", ["SBATCH_TIMELIMIT", "--time=9", "-t9", "-Ht 9", "lua"])
def test_what_others_decide_is_refused_by_nobody(given: str) -> None:
    """sbatch's own variables and options, and a plugin that may change any job."""
    request = JobRequest(name="x", command=("true",), folder=Path("/"))
    main = PartitionLimits(name="main", default=True, max_time=30, default_time=60)
    limits = ClusterLimits(partitions={"main": main}, accounting=False)
    assert "partition main" in str(time_problem(request, limits, UserQuotas("")))
    if given == "lua":
        limits = replace(limits, changes_jobs=True)
    elif given.startswith("-"):
        request = request.with_changes(sbatch_args=(given,))
    else:
        request = request.with_changes(variables=(f"{given}=9",))
    assert time_problem(request, limits, UserQuotas("")) is None
    if given == "lua":
        assert time_problem(request.with_changes(partition="main"), limits, UserQuotas("")) is None


@pytest.mark.parametrize(
    ("account", "more", "variable", "refused"),
    [
        ("small", (), None, True),
        ("large", (), None, False),
        ("large", ("--account=small",), None, True),
        ("small", ("--mem=1G -A large",), None, False),
        ("small", ("-HA small", "--acco 'large'"), None, False),
        (None, ("-A large",), "small", True),  # a variable overrules the script
        ("large", (), "small", False),  # and is removed where slurm.account is set
    ],
)
def test_the_account_that_counts(
    monkeypatch: pytest.MonkeyPatch,
    account: str | None,
    more: tuple[str, ...],
    variable: str | None,
    refused: bool,
) -> None:
    """As sbatch will see it: of slurm.account, sbatch_args and SBATCH_ACCOUNT."""
    rows = association("small", "00:20:00") + association("large")
    monkeypatch.setattr(
        command, "run", lambda argv, **_: rows if "assoc" in argv else qos("normal")
    )
    if variable:
        monkeypatch.setenv("SBATCH_ACCOUNT", variable)
    request = JobRequest(
        name="x", command=("true",), folder=Path("/"), time_minutes=25, account=account
    )
    strict = ClusterLimits(enforces_qos=True, partitions={"main": PartitionLimits(name="main")})
    found = time_problem(request.with_changes(sbatch_args=more), strict, UserQuotas(""))
    assert ("your account gives a job at most 20 minutes" in str(found)) is refused


@pytest.mark.parametrize("silent", ["scontrol", "sacctmgr"])
def test_a_silent_daemon_delays_no_submission(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, silent: str
) -> None:
    """Its answer, which would refuse the job, comes too late: the limits are unknown."""
    os.mkfifo(tmp_path / "never")
    answers = [("scontrol", "QOS=small(2) MaxWallPJ=20")]
    answers.append(("sacctmgr", qos("small", "00:20:00").strip()))
    for name, answer in answers:
        wait = f"read -t 20 <>{tmp_path}/never" if name == silent else ""
        assoc = f"[[ $* == *show\\ assoc\\ * ]] && answer='{association('lab').strip()}'"
        script = f"#!/bin/bash\n{wait}\nanswer='{answer}'\n{assoc}\necho \"$answer\"\n"
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    request = JobRequest(name="x", command=("true",), folder=tmp_path, time_minutes=25, qos="small")
    strict = ClusterLimits(enforces_qos=True, partitions={"main": PartitionLimits(name="main")})
    cluster = SlurmCluster()
    vars(cluster)["_limits"] = strict
    monkeypatch.setattr("detslurm.slurm.qos._PATIENCE", 0.3)
    assert cluster.time_problem(request) is None
