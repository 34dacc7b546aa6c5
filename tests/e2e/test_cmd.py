"""`detslurm cmd` on Slurm: programs as jobs."""

from __future__ import annotations

import os
import signal

import pytest

from tests.e2e.desk import PATIENCE, Desk
from tests.envelope import unwrap

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]

CPU = ("--config", "slurm.slot_type=cpu")


def test_a_program_is_a_job(desk: Desk) -> None:
    """Its output comes as it is printed and its exit status is passed on; Ctrl-C leaves it alone,
    and another command of this user finds, shows and ends it."""
    folder = desk.write("work/data.txt", "frozen\n").parent
    text = "cat data.txt; echo lost >&2; touch made; exit 3"
    done = desk.run("cmd", "run", *CPU, text, cwd=folder, check=False)
    assert (done.returncode, done.stdout) == (3, "frozen\nlost\n"), done.stderr
    assert not (folder / "made").exists(), "it runs in a copy"

    waits = ("sh", "-c", "echo begun; exec sleep 600")
    options = (*CPU, "--config", "environment.environment_variables=[TOKEN=hush]")
    argv = ["detslurm", "cmd", "run", *options, "--description", "waits", "--time", "9", *waits]
    process = desk.user.popen(argv, cwd=folder)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n", "it is streamed"
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Command 2 goes on" in err and "detslurm cmd logs -f 2" in err

    rows = unwrap(desk.run("cmd", "list", "--json").stdout)
    facts = [(row["id"], row["state"], row["exit_code"], row["description"]) for row in rows]
    assert facts == [(1, "ERROR", 3, "cat"), (2, "RUNNING", None, "waits")]
    listed = unwrap(desk.run("experiment", "list", "--type", "command", "--json").stdout)
    assert [row["id"] for row in listed] == [1, 2]
    assert unwrap(desk.run("experiment", "list", "--json").stdout) == []
    jobs = unwrap(desk.run("job", "list", "--mine", "--json").stdout)
    assert [(job["type"], job["name"]) for job in jobs] == [("COMMAND", "waits")]
    shown = unwrap(desk.run("cmd", "describe", "last", "--json").stdout)
    assert (shown["job_id"], shown["entrypoint"]) == (desk.job(2), list(waits))
    assert "hush" not in desk.run("cmd", "config", "2").stdout

    assert "Killed command 2" in desk.run("cmd", "kill", "2").stdout
    followed = desk.run("cmd", "logs", "-f", "2", check=False)
    assert followed.returncode in (137, 143) and "begun" in followed.stdout
    assert desk.view(2).state == "CANCELED"
