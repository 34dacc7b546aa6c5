"""A runner sends the notices of its job, and never waits long for them."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from detslurm.exec import notices
from detslurm.exec.attempt_state import PAUSE
from detslurm.exec.signals import SignalInbox
from detslurm.notices import delivery
from detslurm.notices.definitions import definitions
from detslurm.notices.delivery import flush
from detslurm.notices.event import Event
from detslurm.notices.log import NoticeLog
from detslurm.store import ExperimentDir, RunLog
from tests.exec.test_execution import job_of, reasons_of, refused
from tests.notices.conftest import Define, define, scene, server
from tests.notices.receiver import Receiver
from tests.sdk.scenes import Scene

__all__ = ["define", "scene", "server"]


@pytest.fixture(autouse=True)
def in_a_job(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")


def told(experiment: ExperimentDir) -> list[Event]:
    log = NoticeLog(experiment)
    log.refresh()
    return [notice.event for notice in log.notices.values()]


def test_pauses_of_the_budget_and_of_the_idle_guard(
    scene: Scene, inbox: SignalInbox, define: Define
) -> None:
    """Each is told with its reason; a pause of the user's is not."""
    define("me: {kind: mail, to: me@example.org}")  # which jobs leave to the login node
    job = job_of(scene, inbox, budget=0.0)
    reasons = reasons_of(job)
    reasons.begin(1)
    reasons.stop_cause()
    reasons.stop_cause()
    (event,) = told(job.intents.experiment)
    assert (event.trigger, event.state) == ("PAUSED", "PAUSED")
    assert event.reason == "its budget is used (0 of 0 slot-hours)"

    execution = refused(scene, inbox)
    assert execution._on_idle(PAUSE, "nothing was computed")
    (event,) = told(scene.store.experiment(2))
    assert event.reason == "trial 2: nothing was computed"
    job.notices().finish()
    assert len([*(scene.root / "notices").iterdir()]) == 2  # they wait for the login node


def test_alerts_are_told_once_and_a_flood_is_cut(
    scene: Scene, inbox: SignalInbox, define: Define, server: Receiver
) -> None:
    """New records alone are read; a policy that matches on several nodes is told once."""
    define(f"hook: {{kind: json, url: '{server.url}', triggers: [CUSTOM, TASKLOG]}}")
    job = job_of(scene, inbox)
    trial = scene.run(job.intents.experiment)
    with RunLog.open(trial.records_path(1)) as log:
        log.append({"t": "alert", "title": "one", "level": "warn"})
        log.append({"t": "metrics", "group": "g", "steps": 1, "metrics": {"alert": 1.0}})
    job.notices().look(trial, 1)
    job.notices().look(trial, 1)
    for node in ("n1", "n2"):
        job.notices().on_policy(trial, 1, "nan", node)
    job.notices().finish()
    assert sorted(body["event_type"] for body in server.bodies) == ["CUSTOM", "TASK_LOG"]
    with RunLog.open(trial.records_path(1)) as log:
        for number in range(200):
            log.append({"t": "alert", "title": str(number)})
    job.notices().look(trial, 1)
    assert len(told(job.intents.experiment)) == 50


def test_a_job_ends_in_time(
    scene: Scene,
    inbox: SignalInbox,
    define: Define,
    server: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However slow the server is; what it may have got is not sent again."""
    define(f"hook: {{kind: json, url: '{server.url}'}}")
    over = threading.Event()

    def stall(handler: BaseHTTPRequestHandler) -> None:
        over.wait(60)

    server.act = stall
    monkeypatch.setattr(notices, "AT_END", 4.3)
    monkeypatch.setattr(notices, "TO_RECORD", 4.0)
    monkeypatch.setattr(delivery, "LEAST", 0.0)
    job = job_of(scene, inbox)
    scene.run(job.intents.experiment, end="completed")
    began = time.monotonic()
    job.notices().on_experiment_over()
    job.notices().finish()
    assert time.monotonic() - began < 20  # on a busy machine, and far from the server's minute
    over.set()
    flush(scene.store, definitions(), within=5.0)
    assert len(server.got) <= 1


def test_a_node_behind_a_silent_firewall(
    scene: Scene,
    inbox: SignalInbox,
    define: Define,
    server: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No connection comes about until the job's end: the runner records that nothing was sent, and
    the next command sends it."""
    define(f"hook: {{kind: json, url: '{server.url}'}}")
    monkeypatch.setattr(notices, "AT_END", 20.3)
    monkeypatch.setattr(notices, "TO_RECORD", 20.0)
    monkeypatch.setattr(delivery, "LEAST", 0.0)
    job, over = job_of(scene, inbox), threading.Event()
    scene.run(job.intents.experiment, end="completed")
    job.notices().on_experiment_over()
    with monkeypatch.context() as patch:
        patch.setattr("socket.getaddrinfo", lambda *args, **options: over.wait(60) and None)
        job.notices().finish()
    log = NoticeLog(job.intents.experiment)
    log.refresh()
    ((state,),) = [[*notice.sending.values()] for notice in log.notices.values()]
    assert state.claim is None and state.answer is not None and state.answer.outcome == "later"
    over.set()
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.setattr(delivery, "LEAST", 2.0)
    assert flush(scene.store, definitions(), within=60.0).sent == 1


def test_a_node_that_does_not_see_the_home(
    scene: Scene,
    inbox: SignalInbox,
    define: Define,
    server: Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It keeps what happens, as the submission has made the place for it, and sends nothing."""
    from detslurm.notices.raising import expect_notices

    define(f"hook: {{kind: json, url: '{server.url}'}}")
    expect_notices(scene.store)
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing"))
        job = job_of(scene, inbox)
        scene.run(job.intents.experiment, end="error")
        job.notices().on_experiment_over()
        job.notices().finish()
        assert [event.trigger for event in told(job.intents.experiment)] == ["ERROR"]
        assert not server.got
    monkeypatch.delenv("SLURM_JOB_ID")
    assert flush(scene.store, definitions(), within=5.0).sent == 1
