"""Notices on a real cluster: from jobs that reach the server, and by the next command otherwise."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.envelope import unwrap
from tests.notices.receiver import Receiver, receiver

pytestmark = pytest.mark.cluster

TALKS = """\
    import sys
    import detslurm as det

    with det.core.init() as core:
        core.alert("half way", "loss is falling", "warn")
        print("the weather is bad", flush=True)
        core.train.report_validation_metrics(1, {"loss": 0.5})
    sys.exit(det.get_cluster_info().trial.hparams["status"])
"""
GRID = """\
    name: test
    entrypoint: python3 train.py
    slurm: {slot_type: cpu}
    max_restarts: 0
    searcher: {name: grid, metric: loss}
    log_policies: [{name: weather, pattern: weather is bad}]
    hyperparameters: {status: STATUS, lr: {type: categorical, vals: [0.1, 0.2]}}
    """


def kinds(bodies: list[dict[str, Any]]) -> Counter[str]:
    return Counter(body["condition"].get("state", body["event_type"]) for body in bodies)


def test_what_users_are_told(desk: Desk) -> None:
    """Two trials of two jobs end at about the same time: one COMPLETED, and one notice for each
    alert and each match of a log policy, all from the jobs. From nodes without a route nothing is
    sent; then two commands at once send each of them once. No secret is in the store."""
    with receiver() as server:
        _tell(desk, server)


def _tell(desk: Desk, server: Receiver) -> None:
    triggers = "[COMPLETED, ERROR, PAUSED, TASKLOG, CUSTOM]"
    path = desk.user.home / ".config" / "detslurm" / "notices.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"hook: {{kind: json, url: '{server.url}', triggers: {triggers}}}\n")
    path.chmod(0o600)
    desk.user.own(desk.user.home / ".config")
    desk.write("good/train.py", TALKS)
    first = desk.submit(desk.write("good/experiment.yaml", GRID.replace("STATUS", "0")))
    desk.wait_for_state(first, "COMPLETED")
    expected = Counter(COMPLETED=1, CUSTOM=2, TASK_LOG=2)
    wait_for(lambda: kinds(server.bodies) == expected, PATIENCE, "the jobs to tell")
    alert = next(body for body in server.bodies if body["event_type"] == "CUSTOM")
    assert alert["event_data"]["custom_data"]["title"] == "half way"
    assert alert["event_data"]["experiment"]["id"] == first

    server.got.clear()
    away = {"http_proxy": "http://127.0.0.1:9"}
    desk.write("bad/train.py", TALKS)
    failing = desk.write("bad/experiment.yaml", GRID.replace("STATUS", "3"))
    done = desk.run("submit", str(failing), "--json", env=away)
    second = int(unwrap(done.stdout)["experiment_id"])
    desk.wait_for_state(second, "ERROR")
    notices = desk.store.path / "notices"
    wait_for(lambda: len([*notices.iterdir()]) == 5, PATIENCE, "notices to wait")
    wait_for(lambda: not desk.user.run("squeue", "--me", "--noheader").stdout, PATIENCE, "the jobs")
    assert not server.got
    commands = [desk.user.popen(["detslurm", "notify", "flush"]) for _ in range(2)]
    assert [command.communicate(timeout=PATIENCE)[0] for command in commands] == ["", ""]
    shown = desk.run("notify", "list")
    assert kinds(server.bodies) == Counter(ERROR=1, CUSTOM=2, TASK_LOG=2), shown.stdout
    assert not [*notices.iterdir()]
    files = [path for path in desk.store.path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"s3cr3t-path" in path.read_bytes()]
