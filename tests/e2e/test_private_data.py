"""A site that shows neither its nodes nor its partitions to its users (PrivateData)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from detslurm.slurm.command import advice_for
from tests.cluster import Cluster, ClusterSpec, guarded
from tests.conftest import Login
from tests.e2e.desk import Desk

pytestmark = pytest.mark.cluster


@pytest.fixture
def private(slurm_programs: None) -> Iterator[Cluster]:
    extra = ("PrivateData=nodes,partitions",)
    with guarded(Cluster(ClusterSpec(name="private", nodes=1, accounting=False, extra=extra))) as c:
        yield c


def test_unknown_limits_are_no_refusal(private: Cluster, login: Login) -> None:
    """`submit` works where sbatch does, and says what is unknown; nothing is called another's."""
    desk = Desk(login(private))
    pool = "resources.resource_pool=low"
    done = desk.run("submit", str(desk.project("")), "--config", pool, "--follow")
    assert "this site's partitions are not shown to you: their limits are unknown" in done.stderr
    assert desk.outcomes(1) == ["completed"]
    found = desk.run("doctor").stdout
    assert "the partitions are not shown to you" in found
    said = done.stdout + done.stderr + found + desk.run("resource-pool", "list").stderr
    assert "another user" not in said
    assert "does not show that to you" in advice_for("slurm_load_node: Access/permission denied")
