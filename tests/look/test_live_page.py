"""The page of a live report in a browser: what news change of it, and what they leave."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from msgspec.structs import replace

from detslurm.look.document import Snapshot
from detslurm.look.packing import packed
from detslurm.look.report import page
from detslurm.look.snapshot import encode
from tests.cluster.waiting import wait_for
from tests.look.browser import Browser
from tests.look.documents import document
from tests.look.test_report_page import HOLDING, press

pytest.importorskip("plotly")


class _Server(BaseHTTPRequestHandler):
    """A page, and what the test says is its news."""

    html = b""
    news = b""
    hangs = False

    def do_GET(self) -> None:
        if self.path.endswith(".json"):
            wait_for(lambda: not self.hangs, 60, "the end of the hang")
        self.send_response(200 if self.news or not self.path.endswith(".json") else 503)
        self.end_headers()
        self.wfile.write(self.news if self.path.endswith(".json") else self.html)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(browser: Browser, first: Snapshot, before: str = "") -> Iterator[str]:
    """A live page of this document, open in a browser; its news come from `_Server.news`."""
    # Its clock is made to run a hundred times as fast.
    fast = "<script>const slow = setTimeout; setTimeout = (f, t) => slow(f, t / 100)</script>"
    text = page(first, live=True)
    start = f"{fast}{before}<meta http-equiv"
    _Server.html = text.replace("<meta http-equiv", start, 1).encode()
    _Server.news = encode(packed(first))
    with HTTPServer(("127.0.0.1", 0), _Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            home = f"http://127.0.0.1:{server.server_port}/"
            browser.requests.clear()
            browser.open(home)
            yield home
            browser.open("about:blank")
        finally:
            server.shutdown()
            thread.join()


NAMES = [f"{number:02}" for number in range(14)]


def test_news_leave_a_trials_page_as_its_reader_has_it(chromium: Browser) -> None:
    """What is scrolled, zoomed and unfolded; only what has changed is made anew."""

    def at(points: int, lines: int, names: Sequence[str] = NAMES) -> Snapshot:
        made = document(trials=4, points=points)
        trials = made.experiments[0].trials
        log = [f"line {number}" for number in range(lines)]
        curves = [replace(trials[3].curves[0], metric=name) for name in names]
        trials[3] = replace(trials[3], log_tail=log, curves=curves)
        return made

    log = "document.querySelector('#trial .part-log pre')"
    plot = "document.querySelector('#trial .part-metrics .js-plotly-plot')"
    plots = "document.querySelectorAll('#trial .part-metrics .js-plotly-plot').length"
    with serving(chromium, at(100, 90)):
        chromium.wait_for("document.querySelectorAll('[data-trial]').length === 4")
        chromium.js("location.hash = '#trial-4'")
        chromium.wait_for(f"{plots} === 12")
        press(chromium, "#trial button", "Show 2 more plots")
        chromium.wait_for(f"{plots} === 14")
        chromium.js("document.querySelector('#trial .part-configuration summary').click()")
        chromium.js(f"{log}.scrollTo(0, 40); Plotly.relayout({plot}, {{'xaxis.range': [10, 20]}})")
        chromium.js(f"window.had = [{log}, {plot}, {plot}.data[0].x.length]")
        _Server.news = encode(packed(at(150, 90)))
        chromium.wait_for(f"{plot}.data[0].x.length > had[2]")
        assert chromium.js(f"return [{log} === had[0], {plot} === had[1]]") == [True, True]
        assert chromium.js(f"return {log}.scrollTop") == 40
        assert chromium.js(f"return {plot}.layout.xaxis.range") == [10, 20]
        figures = "document.querySelectorAll('#trial .part-metrics figure').length"
        assert chromium.js(f"return {figures}") == 14
        assert chromium.js(
            "return document.querySelector('#trial .part-configuration details').open"
        )
        _Server.news = encode(packed(at(150, 95)))
        chromium.wait_for(f"{log}.textContent.includes('line 94')")
        assert chromium.js(f"return {log}.scrollTop") == 40
        chromium.js(f"{log}.scrollTo(0, 1e6)")
        _Server.news = encode(packed(at(150, 99)))
        chromium.wait_for(f"{log}.textContent.includes('line 98')")
        end = f"{log}.scrollTop + {log}.clientHeight >= {log}.scrollHeight - 1"
        assert chromium.js(f"return {end}"), "who follows a log goes on to see its end"
        # A run from scratch has none of the last one's metrics until it reports them, too.
        titles = "[...document.querySelectorAll('#trial figcaption bdi')].map((t) => t.textContent)"
        for names in (["02", "new", "03"], []):
            _Server.news = encode(packed(at(150, 99, names)))
            chromium.wait_for(f"{titles}.join() === '{','.join(names)}'")


def test_older_news_are_not_drawn_over_newer_ones(chromium: Browser) -> None:
    """However long they take to unpack."""
    length = "document.querySelector('#trial .js-plotly-plot')?.data[0].x.length"
    with serving(chromium, document(trials=1, points=20), HOLDING):
        chromium.wait_for("asked > 0")
        chromium.js("held = null")
        _Server.news = encode(packed(document(trials=1, points=40)))
        chromium.wait_for(f"{length} === 40")
        _Server.news = b""
        chromium.wait_for("document.querySelector('#page > .warning').textContent.includes('503')")
        chromium.js("release()")
        chromium.wait_for("got === asked")
        frame = "await new Promise(requestAnimationFrame);"
        assert chromium.js(f"{frame}{frame} return {length}") == 40


def test_a_live_page_follows_and_says_when_nobody_answers(chromium: Browser) -> None:
    """It keeps what the reader chose, and asks nobody but the server that it is from."""
    with serving(chromium, document(trials=3)) as home:
        chromium.wait_for("document.querySelectorAll('[data-trial]').length === 3")
        # At once: news come so fast here that they make the row anew within a click of the mouse.
        chromium.js("document.querySelector('[data-trial=\"2\"] input').click()")
        chromium.js("document.querySelector('#summary .card > summary').click()")
        chromium.js("window.lists = [...document.querySelectorAll('select, [type=range]')]")
        _Server.news = encode(document(trials=5))
        chromium.wait_for("document.querySelectorAll('[data-trial]').length === 5")
        assert chromium.js("return document.querySelector('[data-trial=\"2\"] input').checked")
        # A list that is open closes, and a slider stops, when its element is replaced.
        assert chromium.js("return window.lists.length") > 4
        assert chromium.js("return window.lists.every((one) => one.isConnected)")
        assert not chromium.js("return document.querySelector('#summary .card').open")
        _Server.news = b""
        notice = "document.querySelector('#page > .warning')"
        chromium.wait_for(f"!{notice}.hidden && {notice}.textContent.includes('503')")
        _Server.news = encode(document(trials=4))
        chromium.wait_for(f"{notice}.hidden")
        _Server.hangs = True
        chromium.wait_for(f"!{notice}.hidden && {notice}.textContent.includes('for a minute')")
        _Server.hangs = False
        chromium.wait_for(f"{notice}.hidden")
    asked = {one for one in chromium.requests if one.startswith("http")}
    assert asked == {home, f"{home}snapshot.json"}
