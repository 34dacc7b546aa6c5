"""What QOS and associations allow: from Slurm's own text, and asked of a real controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.slurm import qos
from detslurm.slurm.qos import Bound, JobQuota, Qos, UserQuotas, ask_controller, parse_assoc_mgr
from tests.cluster import Cluster

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


def test_what_the_controller_shows_of_a_qos() -> None:
    """Limits and use of the user, of accounts and of all; a limit of none is no limit of 0."""
    known = parse_assoc_mgr(recorded("assoc_mgr-22.05"), "1001").qos
    assert list(known) == ["normal", "tiny"]
    normal, tiny = known["normal"], known["tiny"]
    assert normal.longest is None and tiny.longest == 60
    assert normal.per_user.submitted == Bound(20, 10) and normal.per_user.submitted.room == 10
    assert normal.group.submitted == Bound(None, 10) and normal.group.submitted.room is None
    assert tiny.per_job == {"cpu": Bound(16), "gres/gpu": Bound(4)}
    assert tiny.per_user.jobs == Bound(2, 1)
    assert tiny.per_user.tres["gres/gpu"] == Bound(8, 1)
    assert tiny.per_user.tres["mem"] == Bound(None, 100)
    assert tiny.of_account("phd").submitted == Bound(30, 1)
    assert tiny.group.jobs == Bound(10, 1) and tiny.group.submitted == Bound(40, 1)
    assert tiny.group.tres["cpu"] == Bound(64, 1)


def test_what_the_controller_shows_of_associations() -> None:
    """The user's own, and the accounts above, whose group limits count for it."""
    table = parse_assoc_mgr(recorded("assoc_mgr-22.05"), "alice")
    (own,) = (one for one in table.associations if one.user == "alice")
    assert own.own == JobQuota(jobs=Bound(7, 8), submitted=Bound(33, 11))
    assert own.own.jobs.room == 0
    assert own.per_job == {"gres/gpu": Bound(2)}
    first, second, third = table.above(own)
    assert (first.account, second.account, third.account) == ("phd", "lab", "root")
    assert first.group.submitted == Bound(50, 11) and first.group.tres["gres/gpu"] == Bound(6, 1)
    assert second.group.submitted == Bound(None, 11)


@pytest.mark.parametrize("user", ["1002", "bob"])
@pytest.mark.parametrize("holders", ["No Users", "1001={MaxSubmitJobsPU=20(3)}"])
def test_who_had_no_job_is_not_shown_what_a_qos_allows(user: str, holders: str) -> None:
    """Unknown, not unlimited."""
    text = f"QOS=normal(1) GrpJobs=N(0) MaxWallPJ= Account Limits=No Accounts User Limits={holders}"
    normal = parse_assoc_mgr(text, user).qos["normal"]
    assert not normal.shows_user
    assert normal.per_user.submitted == Bound()


@pytest.mark.parametrize("holder", ["1001", "alice(1001)", "alice"])
def test_a_user_is_found_under_any_name(monkeypatch: pytest.MonkeyPatch, holder: str) -> None:
    monkeypatch.setattr(qos, "_user_id", lambda user: "1001")
    line = f"QOS=normal(1) MaxWallPJ= User Limits= {holder}={{MaxSubmitJobsPU=20(3)}}"
    assert parse_assoc_mgr(line, "alice").qos["normal"].per_user.submitted == Bound(20, 3)


def test_what_the_database_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags and limits without use; each table is asked for once."""
    calls: list[str] = []

    def answer(argv: list[str]) -> str:
        calls.append(argv[4])
        return recorded(f"{argv[4]}-22.05")

    monkeypatch.setattr(qos, "_answer", answer)
    quotas = UserQuotas("lim")
    for _ in range(2):
        known, (own,) = quotas.database, quotas.associations
    assert calls == ["qos", "assoc"]
    assert known["normal"] == Qos(per_user=JobQuota(submitted=Bound(20)))
    assert known["tiny"].flags == {"DenyOnLimit", "OverPartQOS"}
    assert known["tiny"].longest == 60
    assert known["tiny"].of_account("any").submitted == Bound(30)
    assert own.default_qos == "normal" and own.own.submitted == Bound(33)


@pytest.mark.parametrize(("text", "megabytes"), [("100G", 102400), ("1.50T", 1572864), ("7", 7)])
def test_memory_is_in_megabytes(text: str, megabytes: int) -> None:
    line = f"QOS=q(1) MaxTRESPJ=cpu=4,mem={text}"
    assert parse_assoc_mgr(line, "x").qos["q"].per_job["mem"] == Bound(megabytes)


def test_a_real_controller_is_understood(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any job of the user's there is a QOS, and nothing is known of per-user limits."""
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    assert "normal" in ask_controller("nobody").qos
    quotas = UserQuotas(slurm.spec.name)
    assert not quotas.controller.qos["normal"].group.submitted.most
    assert quotas.database["normal"].per_user.submitted == Bound()
    assert all(one.user == quotas.user for one in quotas.associations)
