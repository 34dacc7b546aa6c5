"""The record of an experiment's code, from an ordinary user's submission to `compare`."""

from __future__ import annotations

import os

import pytest

from tests.e2e.desk import Desk
from tests.envelope import unwrap

pytestmark = pytest.mark.cluster

SCRIPT = """\
import detslurm as det

with det.core.init() as core:
    core.train.report_validation_metrics(1, {"loss": 0.5})
"""


def test_a_record_of_what_ran(desk: Desk) -> None:
    """Commit, changed line, packages with those of the jobs' setup, hardware and sbatch's options;
    a repository that git refuses to read is a sentence, and the experiment runs all the same."""
    config = desk.project(SCRIPT)
    project = config.parent
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for words in (("init", "-q", "-b", "main"), ("add", "."), (*identity, "commit", "-qm", "x")):
        desk.user.run("git", "-C", str(project), *words)
    number = desk.submit(config)
    desk.write("project/train.py", SCRIPT + 'api_key = "hush-hush"\n')
    installed = desk.write("packages/special-7.0.dist-info/METADATA", "").parents[1]
    changed = desk.run(
        "submit", str(config), "--config", "slurm.sbatch_args=[--mem=50]",
        "--config", f"slurm.setup=[export PYTHONPATH={installed}]",
    )  # fmt: skip
    assert "The code has uncommitted changes in 1 file\n" in changed.stderr
    for one in (number, number + 1):
        desk.wait_for_state(one, "COMPLETED")

    record = unwrap(desk.run("e", "provenance", str(number + 1), "--json").stdout)
    head = desk.user.run("git", "-C", str(project), "rev-parse", "HEAD").stdout.strip()
    assert (record["code"]["commit"], record["code"]["branch"]) == (head, "main")
    assert '+api_key = "********"' in record["code"]["diff"]
    assert "detslurm" in record["software"]["packages"] and "--mem=50" in record["sbatch"]
    assert record["unsure"] is None  # the run has recorded what the setup brought
    (hardware,) = record["hardware"].values()
    assert hardware["kernel"] == os.uname().release
    compared = unwrap(desk.run("compare", str(number), str(number + 1), "--json").stdout)
    assert compared["environment"].keys() == {"git diff", "package special"}
    assert not (desk.experiment(number).path / "software").exists()  # it ran as submitted

    os.chown(project / ".git", 0, 0)
    refused = desk.run("submit", str(config), "--paused")
    assert "belongs to another user" in refused.stderr and "safe.directory" in refused.stderr
    described = desk.run("e", "describe", str(number + 2)).stdout
    assert "the commit is unknown" in described
