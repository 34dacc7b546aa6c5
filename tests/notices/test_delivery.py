"""Notices are sent once, whatever happens to their senders and receivers."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from detslurm.config.schema.notices import AnyNotice
from detslurm.notices import delivery
from detslurm.notices.definitions import definitions
from detslurm.notices.delivery import Flushed, flush
from detslurm.notices.event import Event
from detslurm.notices.log import NoticeLog, SendResult, SendState
from detslurm.notices.raising import raise_end
from detslurm.sdk.notices import flush_after_command, recent_notices
from detslurm.store import ExperimentDir, compact
from tests.notices.conftest import Define
from tests.notices.receiver import Receiver, receiver, vanish
from tests.sdk.scenes import Scene

SENT = SendResult("sent")


def ended(scene: Scene, outcome: str = "completed") -> ExperimentDir:
    """An experiment whose end was raised, once, although two runners saw it."""
    experiment = scene.experiment(2)
    for index in range(2):
        scene.run(experiment, index, losses=(0.5,), end=outcome, reason="it broke")
    assert raise_end(experiment)
    assert not raise_end(experiment)
    return experiment


def state_of(experiment: ExperimentDir, name: str = "hook") -> SendState:
    log = NoticeLog(experiment)
    log.refresh()
    (notice,) = log.notices.values()
    return notice.sending.get(name, SendState())


def outcome_of(experiment: ExperimentDir) -> str:
    answer = state_of(experiment).answer
    return "" if answer is None else answer.outcome


def pointers(scene: Scene) -> list[str]:
    names = [path.name for path in (scene.root / "notices").iterdir()]
    return [name for name in names if not name.startswith("failed-")]


def send_all(scene: Scene, within: float = 5.0, **options: Any) -> Flushed:
    return flush(scene.store, definitions(), within=within, **options)


def test_the_end_is_told_once(scene: Scene, define: Define, server: Receiver) -> None:
    """The body has the fields of Determined's, the token is a header, and nothing waits after."""
    define(f"hook: {{kind: json, url: '{server.url}', token: t0k3n-value}}")
    experiment = ended(scene)
    assert send_all(scene) == Flushed(sent=1)
    assert send_all(scene) == Flushed() and not pointers(scene)
    ((path, headers, body),) = server.got
    assert path == "/hooks/s3cr3t-path" and headers["Authorization"] == "Bearer t0k3n-value"
    assert body["event_type"] == "EXPERIMENT_STATE_CHANGE"
    assert body["condition"] == {"state": "COMPLETED"} and body["timestamp"] > 0
    told = body["event_data"]["experiment"]
    assert (told["id"], told["name"], told["state"]) == (experiment.id, "test", "COMPLETED")
    assert (told["duration"], told["trials"], told["best_metric"]) == (1000.0, 2, 0.5)
    secrets = (b"s3cr3t", b"t0k3n")
    files = [path for path in scene.root.rglob("*") if path.is_file()]
    assert not [path for path in files if any(word in path.read_bytes() for word in secrets)]


@pytest.mark.parametrize("answers", ["busy", "closed", "proxy"])
def test_what_did_not_arrive_waits(
    scene: Scene, define: Define, server: Receiver, monkeypatch: pytest.MonkeyPatch, answers: str
) -> None:
    """A busy server, a closed port, and a node without a route: sent later, from another node at
    once, from the same one after ten minutes."""
    define(f"hook: {{kind: json, url: '{server.url}'}}")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    if answers == "busy":
        server.status = 503
    elif answers == "closed":
        define(f"hook: {{kind: json, url: 'http://127.0.0.1:{port}/x'}}")
    else:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    experiment = ended(scene)
    assert send_all(scene) == Flushed(later=1)
    assert outcome_of(experiment) == "later" and pointers(scene)
    assert send_all(scene) == Flushed()  # too early
    monkeypatch.delenv("http_proxy", raising=False)
    define(f"hook: {{kind: json, url: '{server.url}'}}")
    server.status = 200
    monkeypatch.setattr("socket.gethostname", lambda: "login")
    assert send_all(scene) == Flushed(sent=1) and not pointers(scene)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(404, "refused"), (307, "refused"), (302, "refused"), (504, "unknown"), (0, "unknown")],
)
def test_what_may_have_arrived_is_not_sent_again(
    scene: Scene, define: Define, server: Receiver, status: int, outcome: str
) -> None:
    """A refusal, a redirect, which is not followed, and a server that vanishes: final."""
    define(f"hook: {{kind: json, url: '{server.url}', token: t0k3n}}")
    server.status, server.act = status, None if status else vanish
    experiment = ended(scene)
    send_all(scene)
    send_all(scene)
    assert len(server.got) == 1 and outcome_of(experiment) == outcome and not pointers(scene)
    answer = state_of(experiment).answer
    assert answer is not None and "s3cr3t" not in answer.detail and "t0k3n" not in answer.detail


def test_an_unknown_certificate_gets_nothing(
    scene: Scene, define: Define, server: Receiver, tmp_path: Path
) -> None:
    """TLS is verified: the notice waits, and the server has seen neither URL nor token."""
    files = {name: str(tmp_path / name) for name in ("key", "cert")}
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1"
    argv = [*make.split(), "-keyout", files["key"], "-out", files["cert"]]
    subprocess.run(argv, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["cert"], files["key"])
    with receiver(context) as secure:
        define(f"hook: {{kind: json, url: '{secure.url.replace('http', 'https', 1)}'}}")
        experiment = ended(scene)
        assert send_all(scene) == Flushed(later=1) and not secure.got
    answer = state_of(experiment).answer
    assert answer is not None and "certificate" in answer.detail.lower()


def test_a_slow_server_costs_a_bounded_time(
    scene: Scene, define: Define, server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer in time it may have arrived; without a connection it waits."""
    monkeypatch.setattr(delivery, "LEAST", 0.0)
    define(f"hook: {{kind: json, url: '{server.url}'}}")
    over = threading.Event()

    def stall(handler: BaseHTTPRequestHandler) -> None:
        over.wait(60)

    server.act = stall
    experiment = ended(scene)
    assert send_all(scene, within=0.5) == Flushed(unknown=1)
    assert outcome_of(experiment) == "unknown"
    over.set()

    # A look-up of a name that hangs, and would go on to send once it is over.
    found, server.act, looks = threading.Event(), None, socket.getaddrinfo

    def look_up(*args: Any, **kwargs: Any) -> Any:
        found.wait(60)
        return looks(*args, **kwargs)

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    ended(scene)
    assert send_all(scene, within=0.5) == Flushed(later=1)
    found.set()
    for thread in threading.enumerate():
        if thread.daemon and "Thread-" in thread.name and thread is not threading.current_thread():
            thread.join(5)
    assert len(server.got) == 1


def test_a_server_that_hangs_delays_few_commands(scene: Scene, define: Define) -> None:
    """After a failure the rest waits, for other commands too; `notify flush` tries all others. No
    attempt begins with too little time for an answer."""
    define("hook: {kind: command, command: [x]}")
    ended(scene), ended(scene)
    tried = list[int]()

    def fails(definition: AnyNotice, event: Event, seconds: float) -> SendResult:
        tried.append(event.experiment)
        return SendResult("later", "no connection")

    assert send_all(scene, within=0.5 * delivery.LEAST, send=fails) == Flushed()
    assert send_all(scene, send=fails) == Flushed(later=1) and tried == [1]
    flush_after_command(scene.store)
    assert outcome_of(ExperimentDir(scene.store, 1)) == "later"
    assert not state_of(ExperimentDir(scene.store, 2)).tries
    assert send_all(scene, send=fails) == Flushed(later=1) and tried == [1, 2]


def test_only_their_owner_sends_notices(
    scene: Scene, define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root, who reads a user's store, neither raises nor sends; and where the user's file is not
    seen all of it waits."""
    define("hook: {kind: command, command: [x]}")
    ended(scene)
    other = scene.experiment()
    scene.run(other, end="error")
    with monkeypatch.context() as patch:
        patch.setattr("detslurm.store.fs.owner_of", lambda path, *, follow=True: 4711)
        assert not raise_end(other)
        assert send_all(scene, send=lambda *args: SENT) == Flushed()
        assert not [*recent_notices(scene.store)]
    assert flush(scene.store, {}, within=5.0) == Flushed() and len(pointers(scene)) == 1
    assert raise_end(other)
    compact(other)
    assert not raise_end(other)  # the same end
    assert send_all(scene, send=lambda *args: SENT) == Flushed(sent=2) and not pointers(scene)


def _killed_at(point: str, scene: Scene, patch: pytest.MonkeyPatch, told: Path) -> None:
    """In a child: flush until `point`, and die there by SIGKILL."""

    def die(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def sends(definition: AnyNotice, event: Event, seconds: float) -> SendResult:
        if point == "claimed":
            die()
        with told.open("a") as file:
            file.write("told\n")
        return die() if point == "sent" else SENT

    if point == "read":
        patch.setattr(NoticeLog, "claim", die)
    if point == "answered":
        patch.setattr(delivery, "remove_pointer", die)
    flush(scene.store, definitions(), within=5.0, send=sends)


@pytest.mark.parametrize(
    ("point", "times", "outcome"),
    [
        ("read", 1, "sent"),
        ("claimed", 0, "unknown"),
        ("sent", 1, "unknown"),
        ("answered", 1, "sent"),
    ],
)
def test_a_killed_sender(
    scene: Scene, define: Define, tmp_path: Path, point: str, times: int, outcome: str
) -> None:
    """Wherever its sender is killed, a notice is never sent twice; it is lost only between the
    claim and the sending, and then it is shown as unknown."""
    define("hook: {kind: command, command: [unused]}")
    experiment, told = ended(scene), tmp_path / "told"
    told.touch()
    if (child := os.fork()) == 0:
        _killed_at(point, scene, pytest.MonkeyPatch(), told)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL

    def sends(definition: AnyNotice, event: Event, seconds: float) -> SendResult:
        with told.open("a") as file:
            file.write("told\n")
        return SENT

    for _ in range(2):
        send_all(scene, send=sends)
    assert told.read_text().count("told") == times
    assert outcome_of(experiment) == outcome and not pointers(scene)


def test_two_flushes_at_once(scene: Scene, define: Define) -> None:
    """Of many senders at the same moment one sends, to each recipient."""
    define("a: {kind: command, command: [x]}\nb: {kind: command, command: [x]}")
    ended(scene)
    told, barrier = list[str](), threading.Barrier(6)

    def sends(definition: AnyNotice, event: Event, seconds: float) -> SendResult:
        told.append(event.key)
        return SENT

    def work() -> None:
        barrier.wait()
        send_all(scene, send=sends)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 2
    send_all(scene, send=sends)
    assert len(told) == 2 and not pointers(scene)


def test_an_unreadable_fact_sends_nothing(scene: Scene, define: Define) -> None:
    """It may be a claim."""
    define("hook: {kind: command, command: [x]}")
    experiment = ended(scene)
    (experiment.path / "notices" / "000002.json").write_text("torn")
    assert send_all(scene, send=lambda *args: pytest.fail("sent")) == Flushed() and pointers(scene)


def test_alerts_are_bounded_and_an_end_is_told_nevertheless(scene: Scene, define: Define) -> None:
    """Code may raise an alert at each step."""
    define("hook: {kind: command, command: [x]}")
    experiment = scene.experiment()
    log = NoticeLog(experiment)
    raised = [log.raise_event(Event(trigger="CUSTOM", key=f"k{n}", time=1.0)) for n in range(60)]
    assert sum(raised) == 50
    assert log.raise_event(Event(trigger="ERROR", key="e", time=1.0))
