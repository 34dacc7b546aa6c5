"""The user's file of notices: private, checked, and never quoted; and each kind's message."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from detslurm.config.errors import ConfigErrors
from detslurm.notices.definitions import definitions, recipients
from detslurm.notices.delivery import send
from detslurm.notices.event import Event
from detslurm.notices.log import SendResult
from tests.notices.conftest import Define
from tests.notices.receiver import Receiver
from tests.sdk.scenes import Scene

ERROR = Event(
    trigger="ERROR", key="e", time=5.0, experiment=7, name="big <run>", reason="out of memory",
    duration=7200.0, trials=3, metric="loss", best_value=0.25, best_trial=9,
)  # fmt: skip


@pytest.mark.usefixtures("scene")
def test_others_may_not_read_it(define: Define) -> None:
    """Any bit for others is refused, with the remedy."""
    path = define("me: {kind: mail, to: me@example.org}")
    assert list(definitions()) == ["me"]
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(ConfigErrors, match=f"others may read this file.*`chmod 600 {path}`"):
            definitions()


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize(
    "text",
    [
        "x: {kind: slack, url: 'ftp://hush.example/hush'}",
        "x: {kind: slack, url: 'https://hush.example/hush', tokn: hush}",
        "x: {kind: json, url: [https://hush.example/hush]}",
        "x: {kind: ntfy, url: 'https://hush.example/hush', token: {a: hush}}",
        "x: {kind: json, url: 'https://hush.example/hush, token: hush}",
        "x: {kind: command, command: 'hush --token hush'}",
        "x: {kind: json, url: 'https://hush.example/hush', triggers: [FAILED]}",
        "x: {kind: json, url: 'https://me:hush@example.org/hook'}",
        "x: {kind: json, url: 'https:///hush'}",
        "x: {kind: ntfy, url: 'https://hush.example/'}",
    ],
)
def test_its_faults_are_told_without_its_secrets(define: Define, text: str) -> None:
    """The message names file, line and key."""
    path = define(text)
    with pytest.raises(ConfigErrors) as caught:
        definitions()
    assert f"{path}:1" in str(caught.value) and "hush" not in str(caught.value)


def test_who_is_told(define: Define, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A definition tells of all experiments or of those that name it, by its triggers; a site's
    file tells only of those that name it, and nobody else may change that file."""
    site = tmp_path / "site-notices.yaml"
    site.write_text("ops: {kind: command, command: [/site/tell]}")
    site.chmod(0o644)
    (tmp_path / "site.yaml").write_text(f"notices: {site}")
    monkeypatch.setenv("DETSLURM_SITE", str(tmp_path / "site.yaml"))
    define(
        "all: {kind: mail, to: a@b}\n"
        "one: {kind: mail, to: a@b, mode: named}\n"
        "logs: {kind: mail, to: a@b, triggers: [TASKLOG], policies: [nan]}\n"
    )
    known = definitions()

    def told(event: Event, *names: str) -> list[str]:
        return sorted(recipients(known, event, names))

    assert told(ERROR) == ["all"] and told(ERROR, "one", "ops") == ["all", "one", "ops"]
    matches = [Event(trigger="TASKLOG", key="t", time=1.0, policy=name) for name in ("nan", "oom")]
    assert [told(match) for match in matches] == [["logs"], []]
    site.chmod(0o666)
    with pytest.raises(ConfigErrors, match="others may change this file"):
        definitions()


@pytest.mark.usefixtures("scene")
def test_messages_of_slack_and_ntfy(define: Define, server: Receiver) -> None:
    """Slack's marks are escaped; ntfy gets topic, title, text and priority."""
    define(
        f"s: {{kind: slack, url: '{server.url}'}}\n"
        f"n: {{kind: ntfy, url: 'http://127.0.0.1:{server.port}/my-topic', token: tk_x}}\n"
    )
    for one in definitions().values():
        assert send(one, ERROR).outcome == "sent"
    (_, _, slack), (path, headers, ntfy) = server.got
    lines = slack["text"].splitlines()
    assert lines[:2] == ["experiment 7 (big &lt;run&gt;) failed", "out of memory"]
    assert "best loss: 0.25 (trial 9)" in lines
    assert path in ("", "/") and headers["Authorization"] == "Bearer tk_x"
    assert (ntfy["topic"], ntfy["priority"]) == ("my-topic", 4)
    assert ntfy["title"] == "experiment 7 (big <run>) failed"


@pytest.mark.usefixtures("scene")
def test_mail_and_commands(define: Define, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sendmail` gets a letter, else `mail` gets a subject; a command gets facts as JSON and in
    variables. A program that can't start waits, and one that fails is refused."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setattr("detslurm.notices.programs._PLACES", "")

    def tool(name: str, script: str) -> None:
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)

    define(
        "m: {kind: mail, to: me@example.org}\n"
        f"c: {{kind: command, command: [{tools}/tell, --loud]}}\n"
    )
    known = definitions()
    assert send(known["m"], ERROR).outcome == "later"  # no mail here
    tool("mail", f'echo "$@" > {tmp_path}/mail; cat >> {tmp_path}/mail')
    assert send(known["m"], ERROR).outcome == "sent"
    sent = (tmp_path / "mail").read_text()
    assert sent.startswith("-s experiment 7 (big <run>) failed -- me@example.org\nout of memory")
    tool("sendmail", f"cat > {tmp_path}/letter")
    assert send(known["m"], ERROR).outcome == "sent"
    letter = (tmp_path / "letter").read_text()
    assert "To: me@example.org\n" in letter and "\n\nout of memory\n" in letter
    alert = Event(trigger="CUSTOM", key="c", time=5.0, experiment=7, title="loss\nfalls")
    assert send(known["m"], alert).outcome == "sent"
    assert "Subject: loss falls: " in (tmp_path / "letter").read_text()

    assert send(known["c"], ERROR).outcome == "later"
    tool("tell", f'env | grep DETSLURM_NOTICE > {tmp_path}/env; echo "$@"; cat > {tmp_path}/in')
    assert send(known["c"], ERROR).outcome == "sent"
    variables = (tmp_path / "env").read_text().splitlines()
    assert {"DETSLURM_NOTICE_TRIGGER=ERROR", "DETSLURM_NOTICE_EXPERIMENT=7"} <= {*variables}
    assert json.loads((tmp_path / "in").read_text())["event_data"]["experiment"]["id"] == 7
    tool("tell", "sleep 8 &")  # nothing waits for what it leaves behind
    assert send(known["c"], ERROR).outcome == "sent"
    tool("tell", "exit 3")
    assert send(known["c"], ERROR) == SendResult("refused", "tell ended with status 3")


def test_nobody_elses_file_counts(define: Define, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another user is refused, whatever its mode."""
    define("me: {kind: mail, to: me@example.org}")
    monkeypatch.setenv("DETSLURM_SITE", "")
    uid = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: uid + 1)
    with pytest.raises(ConfigErrors, match="belongs to another user"):
        definitions()


def test_an_experiment_names_its_notices(scene: Scene, define: Define) -> None:
    """`webhook_name` is kept, `webhook_id` is a deprecated number, `exclude` ends all of it."""
    from detslurm.config import SiteProfile, load_experiment
    from detslurm.notices.raising import raise_end
    from detslurm.sdk.submission.notice_checks import notice_notes
    from tests.sdk.scenes import YAML

    define("me: {kind: mail, to: me@example.org}")
    text = (
        YAML + "integrations: {webhooks: {webhook_name: [lab], webhook_id: [3], exclude: true}}\n"
    )
    path = scene.root.parent / "experiment.yaml"
    path.write_text(text)
    loaded = load_experiment(path)
    (warning,) = (w for w in loaded.warnings if "webhook" in w)
    assert "webhook_id" in warning and "name the notice in webhook_name" in warning
    (note,) = notice_notes(loaded.config, SiteProfile())
    assert note.startswith("no notice 'lab' is defined in ") and "there is me" in note
    experiment = scene.experiment(text=text)
    scene.run(experiment, end="completed")
    assert experiment.run_config().webhooks.webhook_name == ("lab",)
    assert not raise_end(experiment)
