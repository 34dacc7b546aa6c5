"""`detslurm notify`, and what other commands send on the way."""

from __future__ import annotations

import pytest

from detslurm.notices.raising import raise_end
from tests.cli.conftest import Detslurm
from tests.notices.conftest import Define, define, server
from tests.notices.receiver import Receiver
from tests.sdk.scenes import Scene

__all__ = ["define", "server"]


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job, no proxy."""
    for name in ("http_proxy", "HTTP_PROXY", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def ended(scene: Scene, outcome: str = "completed") -> None:
    experiment = scene.experiment()
    scene.run(experiment, end=outcome, reason="it broke")
    assert raise_end(experiment)


def test_any_command_sends_what_waits_once(
    scene: Scene, detslurm: Detslurm, define: Define, server: Receiver
) -> None:
    """Notices that jobs left are sent after the command's own answer. Help sends nothing, and a
    server that is away breaks no command."""
    define(f"hook: {{kind: json, url: '{server.url}'}}")
    ended(scene)
    assert detslurm("--help").status == 0 and not server.got
    plain = detslurm("experiment", "list")
    assert plain.status == 0 and len(server.got) == 1
    again = detslurm("experiment", "list")
    assert (again.out, again.err) == (plain.out, plain.err) and len(server.got) == 1
    define("hook: {kind: json, url: 'http://127.0.0.1:9/x'}")
    ended(scene)
    assert detslurm("experiment", "list").status == 0
    define("hook: {kind: nonsense}")
    assert detslurm("experiment", "list").status == 0


def test_list_and_test(scene: Scene, detslurm: Detslurm, define: Define, server: Receiver) -> None:
    """Definitions without their secrets, the newest notices with their answers, a trial message."""
    define(f"hook: {{kind: json, url: '{server.url}', token: t0k3n}}\nme: {{kind: mail, to: a@b}}")
    ended(scene, "error")
    server.status = 410
    detslurm("notify", "flush")
    shown = detslurm("notify", "list")
    assert "http://127.0.0.1" in shown.out and "refused" in shown.out and "HTTP 410" in shown.out
    data = detslurm("notify", "list", "--json")
    assert [one["name"] for one in data.data["definitions"]] == ["hook", "me"]
    states = {row["to"]: (row["trigger"], row["state"]) for row in data.data["notices"]}
    assert states["hook"] == ("ERROR", "refused")
    tried = detslurm("notify", "test", "hook")
    assert tried.status == 1 and "refused: HTTP 410: ok /***" in tried.out
    server.status = 200
    tried = detslurm("notify", "test", "hook")
    assert tried.status == 0 and server.bodies[-1]["event_type"] == "TEST"
    unknown = detslurm("notify", "test", "nobody")
    assert unknown.status == 1 and "there is hook, me" in unknown.err
    for result in (shown, data, tried, unknown):
        assert "s3cr3t" not in result.out + result.err and "t0k3n" not in result.out + result.err


def test_flush_is_for_cron(
    scene: Scene,
    detslurm: Detslurm,
    define: Define,
    server: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It prints nothing, finds experiments whose jobs have died, and ends that no job has raised,
    and reports what is wrong with the definitions."""
    silent = detslurm("notify", "flush")
    assert (silent.status, silent.out, silent.err) == (0, "", "")
    path = define(f"hook: {{kind: json, url: '{server.url}'}}")
    silent = detslurm("notify", "flush")
    assert (silent.status, silent.out, silent.err) == (0, "", "")
    experiment = scene.experiment()
    scene.run(experiment)
    scene.queue.jobs.clear()
    scene.queue.put("7", "FAILED")
    flushed = detslurm("notify", "flush")
    assert (flushed.status, flushed.out, flushed.err) == (0, "", "")
    assert [body["condition"] for body in server.bodies] == [{"state": "ERROR"}]
    forgotten = scene.experiment()  # its runner was killed before it could raise the end
    scene.run(forgotten, end="completed")
    monkeypatch.setattr("detslurm.sdk.notices._RECENT", 1e12)
    for _ in range(2):
        detslurm("notify", "flush")
    assert [body["condition"]["state"] for body in server.bodies] == ["ERROR", "COMPLETED"]
    path.chmod(0o644)
    refused = detslurm("notify", "flush")
    assert refused.status == 2 and f"chmod 600 {path}" in refused.err
