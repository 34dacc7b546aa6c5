"""Time limits that no partition and no QOS grants."""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from detslurm.slurm import JobRequest, command
from detslurm.slurm.interface import ClusterLimits, PartitionLimits
from detslurm.slurm.walltime import (
    Association,
    Qos,
    applicable,
    granted,
    refusal,
    time_problem,
)

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
        if "assoc" in argv:
            return "lab|||normal|\n"
        return "normal||\nsmall|00:20:00|DenyOnLimit\n"

    def called(argv: list[str]) -> subprocess.CompletedProcess[str]:
        calls.append(argv[0])
        return subprocess.CompletedProcess([], 0, "QOS=small(2) MaxWallPJ=20 MaxTRESPJ=\n")

    monkeypatch.setattr(command, "call", called)
    monkeypatch.setattr(command, "run", said)
    request = JobRequest(name="x", command=("true",), folder=Path("/"), time_minutes=minutes)
    main = PartitionLimits(name="main", default=True, default_time=60)
    strict = ClusterLimits(enforces_qos=True, partitions={"main": main})
    assert who in str(time_problem(request, strict, "small"))
    assert calls == ["sacctmgr", "scontrol", "sacctmgr"]
    assert time_problem(request, replace(strict, enforces_qos=False), "small") is None
    assert calls == ["sacctmgr", "scontrol", "sacctmgr"]


@pytest.mark.parametrize(
    "given", ["SBATCH_PARTITION", "SBATCH_TIMELIMIT", "--time=9", "-t9", "lua"]
)
def test_what_others_decide_is_refused_by_nobody(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """sbatch's own variables and options, and a plugin that finds a partition for the job."""
    request = JobRequest(name="x", command=("true",), folder=Path("/"))
    main = PartitionLimits(name="main", default=True, max_time=30, default_time=60)
    limits = ClusterLimits(partitions={"main": main}, accounting=False)
    assert "partition main" in str(time_problem(request, limits, None))
    if given == "lua":
        limits = replace(limits, changes_jobs=True)
    elif given.startswith("-"):
        request = request.with_changes(sbatch_args=(given,))
    else:
        monkeypatch.setenv(given, "9")
    assert time_problem(request, limits, None) is None
    if given == "lua":
        named = request.with_changes(partition="main")
        assert "partition main" in str(time_problem(named, limits, None))
