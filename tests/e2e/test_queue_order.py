"""`detslurm job update` on a full cluster of two users: which job starts next."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest

from tests.cluster import Cluster, User
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.envelope import unwrap

SITES = [
    pytest.param(id="accounting"),
    pytest.param(id="no_accounting", marks=[pytest.mark.strange_site, pytest.mark.nightly]),
]


def _sbatch(user: User, *options: str, seconds: int = 2) -> str:
    argv = ["sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap=sleep {seconds}"]
    return user.run(*argv).stdout.strip()


def _told(desk: Desk, *words: str) -> str:
    done = desk.run("job", *words)
    assert done.stderr == ""
    return done.stdout


def _pending(desk: Desk, user: str, *words: str) -> list[str]:
    """The ids of a user's pending jobs, as scheduled."""
    listed = unwrap(desk.run("job", "list", *words, "--json").stdout)
    own = (job for job in listed if job["user"] == user and job["state"] == "QUEUED")
    return [job["id"].partition("_")[0] for job in own if not job["held"]]


def _refused(desk: Desk, *words: str) -> str:
    done = desk.run("job", "update", *words, check=False)
    assert (done.returncode, done.stdout) == (1, ""), words
    return done.stderr


def _starts(site: Cluster, jobs: list[str]) -> dict[str, str]:
    """When the jobs that have ended were started, by the controller's own record."""
    text = (site.layout.log / "jobcomp.txt").read_text()
    found = re.findall(r"^JobId=(\d+) .*? StartTime=(\S+)", text, re.MULTILINE)
    return {job: start for job, start in found if job in jobs}


@pytest.mark.parametrize((), SITES)
def test_the_order_of_ones_own_jobs(site: Cluster, desk: Desk, bob: User) -> None:
    """Priority, ahead, behind and partition decide which of equal jobs starts next; so told, and
    so done. What makes no sense is refused in a sentence."""
    alice, blocker = desk.user.name, ["--exclusive"]
    _sbatch(bob, "-N3", *blocker, seconds=900)
    running = _sbatch(desk.user, "-N1", *blocker, seconds=900)
    config = desk.project("print(1)")

    def submit() -> tuple[int, str]:
        number = desk.submit(config, "slurm.sbatch_args=[--exclusive]", "resources.priority=42")
        return number, desk.job(number)

    (_, a1), b1, (_, a2) = submit(), _sbatch(bob, "--nice=41", *blocker), submit()
    b2, (_, a3), (e4, a4), (e5, a5) = (
        _sbatch(bob, "--nice=41", *blocker),
        *(submit() for _ in range(3)),
    )
    wait_for(lambda: _pending(desk, alice) == [a1, a2, a3, a4, a5], PATIENCE, "five pending jobs")

    assert _told(desk, "update", a3, "--ahead-of", a1) == (
        f"Moved job {a3} ahead of job {a1}: job {a3} is now 1st of your 5 pending jobs in main; no"
        " jobs of others stand before it\n"
    )
    assert "is now 3rd of your 5 pending" in _told(desk, "update", a1, "--behind-of", a2)
    assert _pending(desk, alice) == [a3, a2, a1, a4, a5]
    done = _told(desk, "update", a2, "--priority", "90")
    assert "is now 5th of your 5 pending jobs in main; 2 jobs of others stand before it" in done
    assert f"Set `priority` of experiment {e4} to 1: " in _told(desk, "update", a4, "-p", "1")
    assert f"Set `resource-pool` of experiment {e5} to high: job {a5} is now your only" in _told(
        desk, "update", a5, "--resource-pool", "high"
    )
    assert _pending(desk, alice) == [a5, a4, a3, a1, a2]
    described = unwrap(desk.run("experiment", "describe", str(e4), "--json").stdout)
    assert described["priority"] == 1
    assert unwrap(desk.run("e", "describe", str(e5), "--json").stdout)["pool"] == "high"

    ten = [_sbatch(desk.user, "--partition=low", "--nice=41") for _ in range(10)]
    changes = [f"{job}.priority={60 - place}" for place, job in enumerate(ten)]
    assert len(_told(desk, "update-batch", *changes).splitlines()) == 10
    assert _pending(desk, alice, "--resource-pool", "low") == ten[::-1]
    bad = desk.run("job", "update-batch", f"{a1}.priority=1", "nonsense", check=False)
    assert bad.returncode == 2 and "ID.NAME=VALUE" in bad.stderr
    assert _pending(desk, alice, "--resource-pool", "main") == [a4, a3, a1, a2]

    held = _sbatch(desk.user, "--hold")
    for words, text in (
        ((a1, "--ahead-of", b1), f"job {b1} belongs to bob: only the site orders"),
        ((b1, "--priority", "5"), f"job {b1} belongs to bob, who alone may change it"),
        ((b2, "--ahead-of", b1), f"job {b2} belongs to bob, who alone may change it"),
        ((a1, "--ahead-of", running), f"job {running} runs already"),
        ((running, "--priority", "5"), f"job {running} runs already"),
        ((held, "--ahead-of", a1), f"job {held} is held"),
        ((a1, "--ahead-of", ten[0]), "--resource-pool low` brings them together"),
        ((a1, "--resource-pool", "nosuch"), "there is no partition nosuch; there are main"),
        (("1", "--priority", "5"), "there is no job 1 in this queue"),
    ):
        assert text in _refused(desk, *words)

    root = Desk(replace(desk.user, name="root", uid=os.geteuid(), gid=os.getegid()))
    text = f"job {a2} is now 1st of alice's 4 pending jobs in main; no jobs of others stand before"
    assert text in _told(root, "update", a2, "--ahead-of", a4)
    assert "4th of alice's 4" in _told(root, "update", a2, "--behind-of", a1)

    expected = [a5, a4, a3, *(j for j in _queue(desk) if j in (a1, a2, b1, b2))]
    desk.user.run("scancel", running, held, *ten)
    wait_for(lambda: len(_starts(site, expected)) == 7, PATIENCE, "the ends of all jobs")
    starts = _starts(site, expected)
    assert sorted(expected, key=lambda job: starts[job]) == expected
    assert [job for job in expected if job not in (b1, b2)] == [a5, a4, a3, a1, a2]


def _queue(desk: Desk) -> list[str]:
    listed = unwrap(desk.run("job", "list", "--json").stdout)
    return [job["id"] for job in listed if job["state"] == "QUEUED"]
