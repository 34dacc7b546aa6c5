"""A node that can't start jobs: what Slurm does to them, what users are told, and what helps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, ClusterSpec, guarded, missing_programs
from tests.cluster.waiting import wait_for
from tests.conftest import Login
from tests.e2e.desk import PATIENCE, Desk
from tests.envelope import unwrap

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose existence says that the nodes are broken."""
    return tmp_path_factory.mktemp("site") / "broken"


@pytest.fixture(scope="module")
def site(broken: Path) -> Iterator[Cluster]:
    """A cluster of one node whose prolog fails while it is broken."""
    if missing := missing_programs():
        pytest.skip(f"no Slurm cluster: not installed: {', '.join(missing)}")
    prolog = broken.with_name("prolog.sh")
    prolog.write_text(f"#!/bin/sh\n[ ! -e {broken} ]\n")
    prolog.chmod(0o755)
    spec = ClusterSpec(name="launch", nodes=1, accounting=False, extra=(f"Prolog={prolog}",))
    with guarded(Cluster(spec)) as cluster:
        yield cluster


def test_a_job_that_its_node_could_not_start(site: Cluster, login: Login, broken: Path) -> None:
    """Slurm holds it and drains the node; once that is mended, what `job why` says is enough."""
    desk = Desk(login(site, "alice"))
    broken.touch()
    number = desk.submit(desk.project("print('trained')"))
    job = desk.job(number)

    def reason() -> str:
        return site.command("squeue", "-h", "-j", job, "-o", "%r", check=False).strip()

    wait_for(lambda: reason().startswith("launch"), PATIENCE, "the launch to fail")
    why = unwrap(desk.run("job", "why", job, "--json").stdout)
    assert (why["category"], why["permanent"]) == ("held", True)
    assert "nodes could not start it" in why["cause"]
    assert f"detslurm experiment activate {number}" in why["remedy"]
    assert "could not start it" in desk.run("job", "list").stdout
    (node,) = unwrap(desk.run("agent", "list", "--json").stdout)
    assert "DRAIN" in node["state"] and "Prolog" in node["reason"]

    broken.unlink()
    site.command("scontrol", "update", "nodename=n1", "state=resume")
    desk.run("experiment", "activate", str(number))
    desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number) == ["completed"]
