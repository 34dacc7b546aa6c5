"""`detslurm tensorboard start --in-job` on Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import User
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.envelope import unwrap

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]

TRAINS = """\
import detslurm as det

with det.core.init() as core:
    core.train.report_validation_metrics(1, {"loss": 0.5})
"""


READ = """\
import http.client, socket
browser = http.client.HTTPConnection("localhost")
browser.sock = socket.socket(socket.AF_UNIX)
browser.sock.connect({path!r})
browser.request("GET", "/data/runs")
print(browser.getresponse().read().decode())
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_a_tensorboard_is_a_job(desk: Desk, bob: User) -> None:
    """It shows an experiment on a socket of its node, to its user alone, and ends when idle."""
    pytest.importorskip("tensorboard")
    number = desk.submit(desk.project(TRAINS))
    desk.wait_for_state(number, "COMPLETED")
    options = ("--in-job", "--config", "idle_timeout=8s", "--json")
    shown = unwrap(desk.run("tensorboard", "start", str(number), *options).stdout)
    way, _, target = shown["tunnel"].partition("6006:")
    path = target.split()[0]
    assert way == "ssh -N -L " and shown["url"] == "http://localhost:6006/"
    assert shown["type"] == "tensorboard" and Path(path).parent.stat().st_mode & 0o77 == 0
    refused = bob.run("python3", "-c", f"import socket; socket.socket(1).connect({path!r})",
                      check=False)  # fmt: skip
    assert "PermissionError" in refused.stderr

    def runs() -> bool:
        found = desk.user.run("python3", "-c", READ.format(path=path)).stdout
        return "experiment-1" in found

    wait_for(runs, PATIENCE, "the experiment's run")
    desk.wait_for_state(shown["id"], "COMPLETED")
    assert "no request for 8 seconds" in desk.log(shown["id"])
    assert not Path(path).exists()
