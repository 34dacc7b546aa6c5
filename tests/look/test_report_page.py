"""The page of a report in real browsers: nothing is asked for, nothing foreign runs."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from detslurm.look.document import Snapshot
from detslurm.look.packing import packed
from detslurm.look.report import page
from detslurm.look.snapshot import encode
from tests.cluster.waiting import wait_for
from tests.look.browser import Browser
from tests.look.documents import document

pytest.importorskip("plotly")

# Runs before anything of the page: what its policy refuses is counted there.
WATCHED = """<script>
window.refused = [];
document.addEventListener("securitypolicyviolation", (e) => refused.push(e.violatedDirective));
addEventListener("error", (e) => refused.push(String(e.message)));
addEventListener("unhandledrejection", (e) => refused.push(String(e.reason)));
</script><meta http-equiv"""


def shown(browser: Browser, snapshot: Snapshot, folder: Path) -> None:
    """Open the page of a snapshot from a file, and wait for its first views."""
    target = folder / "page.html"
    text = page(snapshot)
    target.write_text(text.replace("<meta http-equiv", WATCHED, 1), encoding="utf-8")
    browser.requests.clear()
    browser.resize(1280, 800)
    browser.open(target.as_uri())
    browser.wait_for("document.querySelector('#table tbody tr')")


def quiet(browser: Browser) -> None:
    """Nothing was asked for, refused or thrown."""
    assert [
        one for one in browser.requests if not one.startswith(("file:", "data:", "blob:"))
    ] == []
    assert browser.js("return performance.getEntriesByType('resource').map(e => e.name)") == []
    assert browser.js("return window.refused") == []


def ids(browser: Browser) -> list[int]:
    """The trials of the table, in its order."""
    found = browser.js(
        "return [...document.querySelectorAll('[data-trial]')].map(r => r.dataset.trial)"
    )
    return [int(one) for one in found]


def press(browser: Browser, selector: str, text: str) -> None:
    """Click what has exactly this text."""
    found = f"[...document.querySelectorAll({selector!r})].find(e => e.textContent === {text!r})"
    browser.js(f"{found}.click()")


def downloaded(browser: Browser, name: str) -> bytes:
    """A file that the page has saved; Firefox begins with an empty one."""
    target = browser.downloads / name
    return wait_for(lambda: target.read_bytes() if target.exists() else b"", what=name)


def scroll_through(browser: Browser) -> None:
    """Let every view draw itself."""
    browser.js(
        "for (const view of document.querySelectorAll('section')) {"
        " view.scrollIntoView(); await new Promise(requestAnimationFrame); }"
    )


def type_filter(browser: Browser, text: str, count: str) -> None:
    """Type into the filter as a user does, after `/`; the table may filter by half of it first."""
    browser.js("document.activeElement.blur()")
    browser.type("/" + text)
    browser.wait_for(f"document.querySelector('.count').textContent === {count!r}")


def test_sort_filter_and_columns(any_browser: Browser, tmp_path: Path) -> None:
    """By the mouse and by the keys."""
    shown(any_browser, document(trials=12), tmp_path)
    assert ids(any_browser) == list(range(1, 13))
    any_browser.click("th button[data-column='hparam lr']")
    place = (
        "[...document.querySelectorAll('thead th')].findIndex(h => h.textContent.startsWith('lr'))"
    )
    rows = "[...document.querySelectorAll('[data-trial]')]"
    cells = f"{rows}.map(r => +r.children[{place}].textContent)"
    rates = any_browser.js(f"return {cells}")
    assert rates == sorted(rates) and len(set(rates)) > 6
    any_browser.click("th button[data-column='hparam lr']")
    assert any_browser.js(f"return {cells}") == rates[::-1]
    type_filter(any_browser, "state=error", "2 of 12 trials")
    assert sorted(ids(any_browser)) == [3, 9]
    any_browser.type("\ue00c")  # Esc
    any_browser.wait_for("document.querySelectorAll('[data-trial]').length === 12")
    any_browser.click(".chooser summary")
    press(any_browser, ".ticks label", "Nodes")
    titles = any_browser.js(
        "return [...document.querySelectorAll('thead button')].map(b => b.textContent)"
    )
    assert "Nodes" in titles and "batch_size" not in titles  # which is the same everywhere
    quiet(any_browser)


@pytest.mark.parametrize("larger", [True, False])
def test_experiments_have_their_best_result(
    chromium: Browser, tmp_path: Path, larger: bool
) -> None:
    """Whether larger or smaller is better; what diverged is not it."""
    whole = document(4)
    alike = [one for one in whole.experiments if one.smaller_is_better is not larger]
    shown(chromium, msgspec.structs.replace(whole, experiments=alike), tmp_path)
    press(chromium, "button", "Experiments")
    names = "[...document.querySelectorAll('#table thead th')].map(h => h.textContent)"
    place = f"{names}.findIndex(name => name.startsWith('Best'))"
    cells = (
        "[...document.querySelectorAll('#table tbody tr')].map(r => +r.children[place].textContent)"
    )
    found = chromium.js(f"const place = {place}; return {cells}")
    most = max if larger else min
    results = [[t.best for t in one.trials if isinstance(t.best, float)] for one in alike]
    assert found == [pytest.approx(most(each), rel=1e-4) for each in results]


def test_csv_of_the_table_holds_no_formula(chromium: Browser, tmp_path: Path) -> None:
    """What is exported is what is shown, and no spreadsheet computes it."""
    shown(chromium, document(trials=6, hostile=True), tmp_path)
    press(chromium, "#table button", "CSV")
    text = downloaded(chromium, "trials.csv").decode()
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert len(rows) == 7 and len({len(row) for row in rows}) == 1
    assert not [
        cell for row in rows for cell in row if cell[:1] in "=+-@" and not _is_number(cell) and cell
    ]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_curves_are_drawn(any_browser: Browser, tmp_path: Path) -> None:
    """One line for each trial with the metric, smoothed or not; those of a filter alone."""
    shown(any_browser, document(trials=12), tmp_path)
    any_browser.js("document.querySelector('#curves').scrollIntoView()")
    lines = "document.querySelectorAll('#curves .scatterlayer .trace path.js-line').length"
    any_browser.wait_for(f"{lines} === 10")  # two trials wait
    names = any_browser.js("return document.querySelector('#curves .plot').data.map(t => t.name)")
    assert {"resumed", "preempted", "failed"} <= set(names)
    any_browser.choose("header select", "training/loss")
    any_browser.wait_for(
        "document.querySelector('#curves .ytitle').textContent === 'training/loss'"
    )
    assert "not finite" in any_browser.js(
        "return document.querySelector('#curves .note').textContent"
    )
    type_filter(any_browser, "state=running", "2 of 12 trials")
    any_browser.wait_for(f"{lines} === 2")
    quiet(any_browser)


def test_smoothing_a_thinned_curve(chromium: Browser, tmp_path: Path) -> None:
    """The moving average is that of the means, which stand where they were taken."""
    made = document(trials=1)
    shown(chromium, made, tmp_path)
    chromium.choose("header select", "training/loss")
    chromium.js("document.querySelector('#curves').scrollIntoView()")
    chromium.wait_for("document.querySelector('#curves .ytitle')?.textContent === 'training/loss'")
    chromium.js(
        "const s = document.querySelector('#curves input[type=range]'); s.value = 0.5;"
        "s.dispatchEvent(new Event('input'))"
    )
    data = "document.querySelector('#curves .plot').data"
    chromium.wait_for(f"{data}.length === 2")
    line = chromium.js(f"const {{ x, y }} = {data}[1]; return {{ x, y }}")
    means = made.experiments[0].trials[0].curves[0].means
    assert means is not None and line["x"] == means.steps
    first, second = (float(value or 0) for value in means.values[:2])
    assert line["y"][:2] == pytest.approx([first, (0.5 * first + second) / 1.5])
    note = chromium.js("return document.querySelector('#curves .note').textContent")
    assert "means of all values" in note
    quiet(chromium)


def test_brush_compare_and_open(any_browser: Browser, tmp_path: Path) -> None:
    """From all trials to a few, to one, and back."""
    shown(any_browser, document(2, trials=12), tmp_path)
    any_browser.js("document.querySelector('#parallel').scrollIntoView()")
    any_browser.wait_for("document.querySelector('#parallel .scatterlayer .trace')")
    x, y = any_browser.place("#parallel .plot")
    height = any_browser.js("return document.querySelector('#parallel .plot').clientHeight")
    left = x - any_browser.js("return document.querySelector('#parallel .plot').clientWidth") // 2
    top = y - height // 2 + 60
    any_browser.drag([(left + 50, top - 2), (left + 50, top + 40), (left + 50, y)])  # high rates
    any_browser.wait_for("document.querySelector('#parallel .count').textContent.includes(' of ')")
    press(any_browser, "#parallel button", "Select these to compare")
    any_browser.wait_for("document.querySelectorAll('#compare thead a').length > 1")
    headings = "[...document.querySelectorAll('#compare thead a')]"
    chosen = any_browser.js(f"return {headings}.map(a => +a.textContent.slice(6))")
    rates = {
        trial.id: trial.hparams["lr"]
        for one in document(2, trials=12).experiments
        for trial in one.trials
        if trial.curves
    }
    assert min(rates[one] for one in chosen) > max(rates[one] for one in rates if one not in chosen)
    names = any_browser.js(
        "return [...document.querySelectorAll('#compare tbody th')].map(h => h.textContent)"
    )
    assert "lr" in names and "batch_size" not in names
    any_browser.click("#compare thead a")
    any_browser.wait_for(f"document.querySelector('#trial h2').textContent === 'Trial {chosen[0]}'")
    any_browser.wait_for("document.querySelectorAll('#trial .part-metrics svg').length > 0")
    assert "detslurm checkpoint download" in any_browser.js(
        "return document.querySelector('#trial').innerText"
    )
    any_browser.type("\ue00c")
    any_browser.wait_for("document.querySelector('#trial').hidden")
    quiet(any_browser)


def test_a_trial_that_was_left_keeps_no_plots(chromium: Browser, tmp_path: Path) -> None:
    """What was drawn lets go of its data, which else the window's listeners would keep on a page
    that is open for days. A trial's own page draws into the plots that it has."""
    shown(chromium, document(trials=2), tmp_path)
    plots = "document.querySelectorAll('#trial .part-metrics .js-plotly-plot')"
    chromium.js("window.seen = []")
    for trial in ids(chromium) * 3:
        chromium.js(f"location.hash = '#trial-{trial}'")
        chromium.wait_for(f"document.querySelector('#trial h2')?.textContent === 'Trial {trial}'")
        chromium.wait_for(f"{plots}.length > 0")
        chromium.js(f"window.seen.push(...{plots})")
        press(chromium, "#trial button", "Compare")
        assert chromium.js(f"return [...{plots}].every((plot) => window.seen.includes(plot))")
        press(chromium, "#trial button", "Don't compare")
    gone = "window.seen.filter((plot) => !plot.isConnected)"
    assert chromium.js(f"return {gone}.length") >= 6
    assert chromium.js(f"return {gone}.filter((plot) => plot.data).length") == 0
    quiet(chromium)


EVERY_PLOT = "curves parallel scatter heat importance rungs timeline"


def test_every_view_is_drawn(any_browser: Browser, tmp_path: Path) -> None:
    """And each can be saved as a picture."""
    shown(any_browser, document(2, trials=12), tmp_path)
    for view in EVERY_PLOT.split():
        any_browser.js(f"document.querySelector('#{view}').scrollIntoView()")
        any_browser.wait_for(f"document.querySelector('#{view} .plot .main-svg')")
    for kind, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        press(any_browser, "#timeline button", kind)
        assert downloaded(any_browser, f"timeline.{kind.lower()}").startswith(start)
    quiet(any_browser)


def test_a_hostile_document_runs_nothing(any_browser: Browser, tmp_path: Path) -> None:
    """Every text of it is shown as text, in every view."""
    shown(any_browser, document(2, trials=6, hostile=True), tmp_path)
    scroll_through(any_browser)
    ids = any_browser.js(
        "return [...document.querySelectorAll('[data-trial]')].map(r => r.dataset.trial)"
    )
    for one in ids[:6]:
        any_browser.js(f"location.hash = '#trial-{one}'; await new Promise(requestAnimationFrame)")
        any_browser.wait_for(f"document.querySelector('#trial h2')?.textContent === 'Trial {one}'")
    made = "main img, main iframe, main script, main [onload], main [onerror]"
    assert any_browser.js(f"return document.querySelectorAll('{made}').length") == 0
    assert any_browser.js("return document.title") != "owned"
    assert "<img src=x" in any_browser.js("return document.querySelector('main').textContent")
    quiet(any_browser)


@pytest.mark.parametrize("trials", [0, 1])
def test_a_page_of_little(chromium: Browser, tmp_path: Path, trials: int) -> None:
    """An experiment without trials, or without a metric, has a page that says so."""
    snapshot = document(trials=trials, points=0)
    (tmp_path / "page.html").write_text(page(snapshot).replace("<meta http-equiv", WATCHED, 1))
    chromium.open((tmp_path / "page.html").as_uri())
    chromium.js("document.querySelector('#curves').scrollIntoView()")
    chromium.wait_for("document.querySelector('#curves .nothing')")
    assert chromium.js("return window.refused") == []


@pytest.mark.parametrize("live", [False, True])
def test_the_policy_refuses_foreign_scripts(
    any_browser: Browser, tmp_path: Path, live: bool
) -> None:
    """Even one that stands in the page: this is the net below all the escaping."""
    text = page(document(trials=1), live).replace("<meta http-equiv", WATCHED, 1)
    text = text.replace("<noscript>", "<script>window.ran = 1</script><img src=x onerror=ran=1>", 1)
    (tmp_path / "page.html").write_text(text)
    any_browser.open((tmp_path / "page.html").as_uri())
    any_browser.wait_for("document.querySelector('#table tbody tr')")
    any_browser.wait_for("window.refused.length >= 2")
    assert any_browser.js("return window.ran ?? 0") == 0


def test_a_choice_keeps_the_place_of_the_reader(chromium: Browser, tmp_path: Path) -> None:
    """Ticking a trial far down neither scrolls the table nor loses the focus; nor do news."""
    shown(chromium, document(trials=300, points=10), tmp_path)
    frame = "document.querySelector('#table .tall')"
    chromium.js(f"{frame}.scrollTo(0, 1e6)")
    chromium.wait_for("document.querySelectorAll('[data-trial]').length === 300")
    chromium.js(f"{frame}.scrollTo(0, 5000)")
    down = chromium.js(f"return {frame}.scrollTop")
    chromium.js("document.querySelector('[data-trial=\"250\"] input').focus({preventScroll: true})")
    chromium.type(" ")
    chromium.wait_for("document.querySelector('[data-trial=\"250\"] input').checked")
    assert chromium.js(f"return {frame}.scrollTop") == down
    named = "document.activeElement.getAttribute('aria-label')"
    assert chromium.js(f"return {named}") == "Compare trial 250"


def test_it_prints_all_in_light_colours(chromium: Browser, tmp_path: Path) -> None:
    """Whatever is on the screen; afterwards it is as before."""
    shown(chromium, document(trials=300, points=10), tmp_path)
    chromium.js("document.querySelector('header [title=\"Light or dark\"]').click()")
    rows = "document.querySelectorAll('[data-trial]').length"
    assert chromium.js(f"return {rows}") < 300
    theme = "document.documentElement.dataset.theme"
    chromium.js("dispatchEvent(new Event('beforeprint'))")
    assert chromium.js(f"return [{rows}, {theme}]") == [300, "light"]
    assert chromium.js("return document.querySelectorAll('.plot .main-svg').length") > 6
    chromium.js("dispatchEvent(new Event('afterprint'))")
    assert chromium.js(f"return {theme}") == "dark"


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
def serving(browser: Browser, first: Snapshot) -> Iterator[str]:
    """A live page of this document, open in a browser; its news come from `_Server.news`."""
    # Its clock is made to run a hundred times as fast.
    fast = "<script>const slow = setTimeout; setTimeout = (f, t) => slow(f, t / 100)</script>"
    text = page(first, live=True)
    _Server.html = text.replace("<meta http-equiv", f"{fast}<meta http-equiv", 1).encode()
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
    with serving(chromium, at(100, 90)):
        chromium.wait_for("document.querySelectorAll('[data-trial]').length === 4")
        chromium.js("location.hash = '#trial-4'")
        chromium.wait_for(plot)
        press(chromium, "#trial button", "Show 2 more plots")
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
