"""The pages of a store: what they show, what they refuse, and what they cost."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urljoin
from wsgiref.types import WSGIApplication

import pytest

from detslurm.look.access import for_own_host, for_token
from detslurm.look.app import application
from detslurm.look.live import AnswerMemory
from detslurm.store import RunLog, fs
from tests.look.http_requests import Answer, ask
from tests.sdk.scenes import Scene
from tests.store.faults import refusing

pytest.importorskip("plotly")

HOSTILE = "<script>alert(1)</script>"
MANY = ",".join(map(str, range(1, 23)))
STRANGE = """
    /experiments/0/ /experiments/01/ /experiments/-1/ /experiments/+1/ /experiments/1e0/ /x
    /experiments/../ /experiments/../../etc/passwd /experiments/1/../2/ //etc/passwd /experiments//
    /experiments/1/config.yaml /experiments/1/snapshot.json/ /experiments/1/snapshot.json%00
    /experiments/1,/ /experiments/,1/ /experiments/1;2/ /experiments/\u0663/ /experiments/1%0a/
    /../experiments/1/ /snapshot.json /store/experiments/1/ /experiments/9999999999999999/
"""


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A store with a finished experiment and one that runs."""
    scene = Scene(tmp_path / "store")
    scene.run(scene.experiment(1, name=HOSTILE), losses=[0.5, 0.25], end="completed")
    running = scene.experiment(1, job="8", name="lively")
    scene.run(running, losses=[0.75], ref="8")
    scene.queue.put("8", "RUNNING")
    return scene


@pytest.fixture
def pages(scene: Scene, clock: Clock) -> WSGIApplication:
    return application(lambda: scene.client, clock)


def test_experiments_are_listed_newest_first(pages: WSGIApplication) -> None:
    """With links to their pages; what users have named can't become HTML."""
    text = ask(pages).text
    assert text.index("lively") < text.index("alert(1)")
    assert HOSTILE not in text
    assert '<a href="experiments/2/">lively</a>' in text


def test_the_list_is_searched_and_goes_on(pages: WSGIApplication) -> None:
    """By words in names, owners, states; and by pages."""
    assert "alert(1)" not in ask(pages, "/?q=LIVELY+alice").text
    assert "no such experiments" in ask(pages, "/?q=bob").text
    assert "lively" not in ask(pages, "/?before=2").text
    assert '<input type="search" name="q"' in ask(pages, "/?q=%22%3E%3Cb%3E").text
    assert "<b>" not in ask(pages, "/?q=%22%3E%3Cb%3E").text


def test_running_and_queued_are_told_apart(pages: WSGIApplication, scene: Scene) -> None:
    """By state and by the trials behind it; chips limit the list to one condition."""
    scene.experiment(2, job="9", name="in line")
    text = ask(pages).text
    assert text.count('<span class="badge running">RUNNING</span>') == 1
    assert text.count('<span class="badge queued">QUEUED</span>') == 1
    assert "1 running, 0/1<" in text and "2 queued, 0/2<" in text
    assert '0.25 <span class="note">loss</span>' in text
    assert "lively" not in ask(pages, "/?state=queued").text
    running = ask(pages, "/?state=running").text
    assert "lively" in running and "in line" not in running
    assert '<a href="?state=running" aria-current="true">Running</a>' in running
    assert '<a href="?q=x&amp;state=queued">Queued</a>' in ask(pages, "/?q=x").text
    assert "lively" in ask(pages, "/?state=%22%3E").text  # what is not known limits nothing


def test_experiments_are_grouped_by_project(pages: WSGIApplication, scene: Scene) -> None:
    """The project of the newest experiment first; words of a project find its experiments."""
    scene.client.stored(1).move("vision", "<digits>")
    text = ask(pages, "/?group=project").text
    heads = re.findall(r'<tr class="project"><th colspan="10">(.*?)</th>', text)
    assert heads == ["Uncategorized / Uncategorized", "vision / &lt;digits&gt;"]
    assert "lively" not in ask(pages, "/?q=vision").text


def form(**fields: str) -> bytes:
    return urlencode(fields).encode()


def test_what_is_said_of_an_experiment_is_edited(scene: Scene, clock: Clock) -> None:
    """With the token of the form: notes, labels and archive, as the commands do, and nothing else.
    Other sites' forms have no token, and without one the pages have no form at all."""
    pages = application(lambda: scene.client, clock, token="s3cret")
    path, post = "/experiments/1/edit", {"REQUEST_METHOD": "POST"}
    assert f'href="{path[1:]}"' in ask(pages).text
    page = ask(pages, path).text
    assert 'name="form" value="s3cret"' in page and "still" in page
    before = len(list(scene.store.experiment(1).facts()))
    said = form(form="s3cret", notes="<b>\r\nsecond line", labels="good\r\n\r\nkeep, it")
    for body in (said.replace(b"s3cret", b"guess"), b"", b"form=s3cret", b"\xff=%ff&form=s3cret"):
        assert ask(pages, path, body=body, **post).status == 403
    assert len(list(scene.store.experiment(1).facts())) == before
    saved = ask(pages, path, body=said, **post)
    assert (saved.status, saved.headers["location"]) == (303, "../../")
    one = scene.client.stored(1)
    assert (one.notes, one.labels) == ("<b>\nsecond line", {"good", "keep, it"})
    assert len(list(scene.store.experiment(1).facts())) == before + 2
    assert "<code>good</code>" in ask(pages).text  # at once
    assert "&lt;b&gt;\nsecond line" in ask(pages, path).text
    again = form(form="s3cret", notes=one.notes, labels="good\nkeep, it", archived="1")
    assert ask(pages, path, body=again, **post).status == 303
    assert scene.client.stored(1).archived and "alert(1)" not in ask(pages).text
    assert "alert(1)" in ask(pages, "/?state=archived").text
    running = ask(pages, "/experiments/2/edit", body=again, **post)
    assert (running.status, "not finished" in running.text) == (409, True)
    assert scene.client.stored(2).notes == ""
    assert ask(pages, "/experiments/9/edit").status == 404
    assert ask(pages, path, REQUEST_METHOD="PUT").headers["allow"] == "GET, HEAD, POST"
    silent = application(lambda: scene.client, clock)
    assert ask(silent, path).status == 404 and ask(silent, path, body=again, **post).status == 405


def test_a_report_is_live(pages: WSGIApplication) -> None:
    """The page, and its data beside it; both of several experiments, too."""
    page = ask(pages, "/experiments/2/")
    assert (page.status, "lively" in page.text) == (200, True)
    data = json.loads(ask(pages, "/experiments/1,2/snapshot.json").body)
    assert [one["id"] for one in data["experiments"]] == [1, 2]


def test_news_are_seen_and_what_is_known_is_not_sent_again(
    pages: WSGIApplication, scene: Scene, clock: Clock
) -> None:
    """A page that asks every ten seconds gets data when there are some."""
    done, running = "/experiments/1/snapshot.json", "/experiments/2/snapshot.json"
    known = {
        path: {"HTTP_IF_NONE_MATCH": ask(pages, path).headers["etag"]} for path in (done, running)
    }
    clock.now += 10
    assert ask(pages, done, **known[done])[::2] == (304, b"")
    scene.run(scene.store.experiment(2), losses=[0.1, 0.1, 0.1], ref="8")
    later = ask(pages, running, **known[running])
    assert later.status == 200
    assert json.loads(later.body)["experiments"][0]["trials"][0]["steps"] == 3


def test_only_what_is_new_of_logs_is_read(
    pages: WSGIApplication, scene: Scene, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the list and by a page, also when the queue is asked: 12 running trials of 500 reports."""
    for job in ("20", "21"):
        experiment = scene.experiment(6, job=job)
        for place in range(6):
            ref = f"{job}_{place}"
            scene.run(experiment, place, losses=[1 / n for n in range(1, 500)], ref=ref)
            scene.queue.put(ref, "RUNNING")
    read, pieces = [0], fs.read_pieces

    def counting(name: fs.AnyPath, *, start: int = 0) -> Iterator[bytes]:
        for piece in pieces(name, start=start):
            read[0] += len(piece)
            yield piece

    monkeypatch.setattr(fs, "read_pieces", counting)
    paths = ["/", "/experiments/3/snapshot.json", "/experiments/2,3/snapshot.json"]
    for path in paths:
        assert ask(pages, path).status == 200
    assert read[0] > 100_000
    for path in paths:
        read[0], clock.now = 0, clock.now + 31
        assert (ask(pages, path).status, read[0]) == (200, 0)
    with RunLog.open(scene.store.experiment(3).trial(5).records_path(1)) as log:
        log.append({"t": "metrics", "group": "validation", "steps": 900, "metrics": {"loss": 1.0}})
    clock.now += 31
    assert ask(pages, "/").status == 200
    assert 0 < read[0] < 500


@pytest.mark.parametrize("prefix", ["", "/pun/dev/detslurm", "/user/ada/proxy/8080"])
def test_links_work_below_any_prefix(pages: WSGIApplication, prefix: str) -> None:
    """As a browser resolves them, from the address without a slash to the data of a page."""

    def follow(url: str) -> tuple[str, Answer]:
        assert url.startswith(f"http://portal{prefix}"), url
        place = url.removeprefix(f"http://portal{prefix}")
        answer = ask(pages, place, SCRIPT_NAME=prefix)
        if answer.status == 303:
            return follow(urljoin(url, answer.headers["location"]))
        return url, answer

    url, found = follow(f"http://portal{prefix}" if prefix else "http://portal/")
    links = re.findall(r'href="(experiments[^"]*)"', found.text)
    assert links == ["experiments/2/", "experiments/1/"]
    assert follow(urljoin(url, "experiments/2"))[1].status == 200
    url, found = follow(urljoin(url, "experiments?id=1&id=2"))
    assert url == f"http://portal{prefix}/experiments/1,2/"
    assert follow(urljoin(url, "snapshot.json"))[1].status == 200


def test_passenger_hides_that_the_slash_is_missing(pages: WSGIApplication) -> None:
    """Its path is the same with and without; only the whole address tells."""
    prefix = "/pun/dev/detslurm"
    bare = ask(pages, "/", SCRIPT_NAME=prefix, REQUEST_URI=f"{prefix}?q=x")
    assert (bare.status, bare.headers["location"]) == (303, "./detslurm/")
    assert ask(pages, "/", SCRIPT_NAME=prefix, REQUEST_URI=f"{prefix}/").status == 200
    assert ask(pages, "/", SCRIPT_NAME="", REQUEST_URI="/").status == 200


@pytest.mark.parametrize("prefix", ["/", "/x/"])
@pytest.mark.parametrize("path", ["", "/"])
def test_a_prefix_that_ends_in_a_slash_leads_nowhere_else(
    pages: WSGIApplication, prefix: str, path: str
) -> None:
    """What was asked for has its slash already: to be sent there again would never end."""
    given = {"SCRIPT_NAME": prefix, "PATH_INFO": path}
    for address in ({}, {"REQUEST_URI": prefix}):  # which the standard's own checks refuse

        def below(environ: Any, start: Any, more: Any = address) -> Any:
            return pages({**environ, **given, **more}, start)

        assert ask(below).status == 200


@pytest.mark.parametrize("last", ["a:b", "é", "a?b"])
def test_the_missing_slash_is_added_to_any_prefix(pages: WSGIApplication, last: str) -> None:
    """The last word alone may look like a scheme, or have what an address writes otherwise."""
    prefix, asked = f"/x/{last}".encode().decode("latin-1"), f"/x/{quote(last)}"
    for path, more in (("", {}), ("/", {"REQUEST_URI": asked})):
        answer = ask(pages, path, SCRIPT_NAME=prefix, **more)
        assert answer.status == 303
        found = urljoin(f"http://portal{asked}", answer.headers["location"])
        assert found == f"http://portal/x/{quote(last)}/"


@pytest.mark.parametrize("path", [*STRANGE.split(), "/experiments/1/\n", f"/experiments/{MANY}/"])
def test_only_ids_are_taken(pages: WSGIApplication, path: str) -> None:
    """Nothing that a request names becomes a path: neither in the store nor outside."""
    answer = ask(pages, path.encode().decode("latin-1"))
    assert answer.status == 404
    assert b"root:x" not in answer.body


def test_the_list_runs_nothing_but_its_own(pages: WSGIApplication) -> None:
    """Its policy names its style and its script by their hashes, and there are no others."""
    answer = ask(pages)
    policy = answer.headers["content-security-policy"]
    for tag in ("style", "script"):
        found = re.findall(f"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        digests = [b64encode(sha256(text.encode()).digest()).decode() for text in found]
        assert re.findall(f"{tag}-src ([^;]*)", policy) == [f"'sha256-{digests[0]}'"]
        assert len(found) == answer.text.count(f"<{tag}") == 1
    assert not re.search(r"\son\w+=|\sstyle=|javascript:", answer.text)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_is_for_reading_only(pages: WSGIApplication, method: str) -> None:
    """Every other method is refused."""
    answer = ask(pages, "/experiments/1/", REQUEST_METHOD=method)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/experiments/1/", "/experiments/1/snapshot.json", "/x"])
def test_every_answer_is_guarded(pages: WSGIApplication, path: str) -> None:
    """Never stored, never sniffed, never in another's frame; HEAD is GET without the body."""
    answer = ask(pages, path, HTTP_ACCEPT_ENCODING="gzip, br")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "frame-ancestors" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    if "content-encoding" in answer.headers:
        assert gzip.decompress(answer.body)
    head = ask(pages, path, HTTP_ACCEPT_ENCODING="gzip, br", REQUEST_METHOD="HEAD")
    assert (head.status, head.headers, head.body) == (answer.status, answer.headers, b"")


def test_the_queue_is_asked_every_half_minute_whoever_looks(
    pages: WSGIApplication, scene: Scene, clock: Clock
) -> None:
    """Once for all experiments, by 50 requests at once and by all that come after."""
    scene.run(scene.experiment(1, job="9"), losses=[0.5], ref="9")
    scene.queue.put("9", "RUNNING")
    paths = ["/experiments/2/snapshot.json", "/", "/experiments/3/", "/experiments/3/snapshot.json"]
    with ThreadPoolExecutor(50) as readers:
        found = list(readers.map(lambda i: ask(pages, paths[i % 4]).status, range(50)))
    assert found == [200] * 50
    assert scene.queue.listings == 1
    for _ in range(9):
        clock.now += 3
        assert [ask(pages, path).status for path in paths] == [200] * 4
    assert scene.queue.listings == 1
    clock.now += 3
    assert [ask(pages, path).status for path in paths] == [200] * 4
    assert (scene.queue.listings, scene.queue.queries) == (2, [])


def test_a_job_that_begins_runs_though_the_queue_was_asked_before(
    pages: WSGIApplication, scene: Scene, clock: Clock
) -> None:
    """A run of its trial says so; one that was there when the job waited died with its node."""
    path = "/experiments/2/snapshot.json"

    def state() -> str:
        (trial,) = json.loads(ask(pages, path).body)["experiments"][0]["trials"]
        return str(trial["state"])

    scene.queue.put("8", "PENDING")
    assert state() == "QUEUED"
    trial = scene.store.experiment(2).trial(2)
    trial.open_run({"time": time.time(), "job": {"cluster": scene.queue.name, "ref": "8"}})
    clock.now += 5
    assert state() == "RUNNING"
    assert scene.queue.listings == 1
    clock.now += 30
    assert state() == "QUEUED"


def test_a_queue_that_does_not_answer_is_named_and_left_alone(
    pages: WSGIApplication, scene: Scene, clock: Clock
) -> None:
    """States are then those of the store; it is asked again after half a minute."""
    scene.queue.down = True
    assert "slurm does not answer" in ask(pages).text
    scene.queue.down = False
    clock.now += 10
    assert "slurm does not answer" in ask(pages).text
    clock.now += 30
    assert "slurm does not answer" not in ask(pages).text


def test_a_store_that_is_deleted_is_missed_and_found_again(
    pages: WSGIApplication, scene: Scene, clock: Clock
) -> None:
    """In words, without a traceback, for a browser and for a page that asks for its data."""
    assert ask(pages).status == 200
    away = scene.root.with_name("away")
    scene.root.rename(away)
    clock.now += 10
    for path in ("/", "/experiments/2/", "/experiments/2/snapshot.json"):
        answer = ask(pages, path)
        assert (answer.status, "there is no store at" in answer.text) == (503, True)
        assert "Traceback" not in answer.text
    assert set(json.loads(ask(pages, "/experiments/2/snapshot.json").body)) == {"error"}
    away.rename(scene.root)
    assert "lively" in ask(pages).text
    shutil.rmtree(scene.root)
    scene.experiment(1, name="another")
    clock.now += 10
    assert "another" in ask(pages).text


def test_what_is_not_there_is_missed(pages: WSGIApplication) -> None:
    """An experiment that never was; where all of several are missing."""
    assert ask(pages, "/experiments/7/").status == 404
    assert ask(pages, "/experiments/7,8/snapshot.json").status == 404


def test_what_can_be_read_is_shown_beside_what_cannot(pages: WSGIApplication, scene: Scene) -> None:
    """Which experiment is missing, and why, is said in its place."""
    facts = scene.store.experiment(1).path / "facts" / "000001.json"
    with refusing(facts):
        assert ask(pages, "/experiments/1/").status == 503
        assert ask(pages, "/experiments/7,1,2/").status == 200
        data = json.loads(ask(pages, "/experiments/7,1,2/snapshot.json").body)
    missing, broken, fine = data["experiments"]
    assert (missing["id"], missing["state"]) == (7, "UNKNOWN")
    assert "there is no experiment 7" in missing["problems"][0]
    assert (broken["id"], broken["state"]) == (1, "UNKNOWN")
    assert "can't be read" in broken["problems"][0]
    assert (fine["id"], fine["trials"][0]["steps"]) == (2, 1)


def test_a_fault_of_ours_is_for_the_terminal(
    pages: WSGIApplication, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The browser gets a sentence, the terminal the traceback."""

    def broken(*args: object, **more: object) -> None:
        raise ZeroDivisionError("a secret path")

    monkeypatch.setattr("detslurm.sdk.experiments.store_reader.StoreReader.rows", broken)
    answer = ask(pages)
    assert (answer.status, "secret" in answer.text) == (500, False)
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_only_own_names_of_the_machine_are_answered(pages: WSGIApplication) -> None:
    """A page of elsewhere whose name leads here (DNS rebinding) reads nothing."""
    guarded = for_own_host(pages)
    for host in ("localhost:8080", "127.0.0.1", "[::1]:80", "LOCALHOST"):
        assert ask(guarded, HTTP_HOST=host).status == 200
    for host in ("evil.example", "localhost.evil.example:8080", "localhost:8080@x", "127.0.0.1.x"):
        answer = ask(guarded, HTTP_HOST=host)
        assert (answer.status, "lively" in answer.text) == (403, False)
    assert ask(guarded, HTTP_HOST="").status == 403


def test_pages_of_others_get_nothing_but_their_readers(pages: WSGIApplication) -> None:
    """A link is followed; a picture or a script of another page would only cost a core."""
    guarded = for_own_host(pages)
    asked = {"HTTP_HOST": "localhost:8080", "HTTP_SEC_FETCH_SITE": "cross-site"}
    assert ask(guarded, **asked, HTTP_SEC_FETCH_MODE="no-cors").status == 403
    assert ask(guarded, **asked, HTTP_SEC_FETCH_MODE="navigate").status == 200


def test_the_token_becomes_a_cookie(pages: WSGIApplication) -> None:
    """Once from the address, then from a cookie that scripts and other sites can't use."""
    token = "ab" * 24
    guarded = for_token(pages, token)
    assert ask(guarded).status == 403
    assert ask(guarded, "/?token=wrong").status == 403
    assert ask(guarded, "/?token=").status == 403
    assert ask(guarded, HTTP_COOKIE="detslurm-x=\u00ff; =;;").status == 403
    opened = ask(guarded, f"/?token={token}")
    assert (opened.status, opened.headers["location"]) == (303, "./")
    cookie, *attributes = opened.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Lax"} <= set(attributes)
    for other in ("other=1", 'x={"a":1}', "theme", "version=1", "\u00ff=\u00ff"):
        assert ask(guarded, HTTP_COOKIE=f"{other}; {cookie}").status == 200
    assert ask(guarded, HTTP_COOKIE=f"{cookie[:-1]}x").status == 403


def test_only_what_is_asked_for_makes_others_wait_longer() -> None:
    """Pages that take a second each rest for as long as all that are open need; closed ones not."""
    now, made = [0.0], []
    memory: AnswerMemory[int] = AnswerMemory(lambda: now[0])

    def make() -> int:
        now[0] += 1.0
        made.append(now[0])
        return len(made)

    for key in "abc":  # the last one rests for 15 s
        memory.get(key, make)
    now[0] += 14.0
    assert (memory.get("c", make), len(made)) == (3, 3)
    now[0] += 100.0
    memory.get("c", make)  # the others are closed by now: 5 s
    now[0] += 6.0
    assert (memory.get("c", make), len(made)) == (5, 5)
