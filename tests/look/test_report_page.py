"""The page of a report in real browsers: nothing is asked for, nothing foreign runs."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import msgspec
import pytest

from detslurm.look.document import ObjectivePart, Snapshot, TrialPart
from detslurm.look.report import page
from tests.cluster.waiting import wait_for
from tests.look.browser import TIMEOUT, Browser
from tests.look.documents import document

pytest.importorskip("plotly")

# Runs before anything of the page: what its policy refuses is counted there.
WATCHED = """<script>
window.refused = [];
document.addEventListener("securitypolicyviolation", (e) => refused.push(e.violatedDirective));
addEventListener("error", (e) => refused.push(String(e.message)));
addEventListener("unhandledrejection", (e) => refused.push(String(e.reason)));
</script><meta http-equiv"""


# Keeps the points of curves packed for as long as `window.held` says; plotly comes all the same.
HOLDING = """<script>
const text = Response.prototype.text;
window.held = new Promise((done) => (window.release = done));
[window.asked, window.got] = [0, 0];
Response.prototype.text = async function () {
  const [until, found] = [window.held, await text.call(this)];
  if (!found.startsWith("[")) return found;
  asked += 1;
  await until;
  got += 1;
  return found;
};
</script>"""


def shown(browser: Browser, snapshot: Snapshot, folder: Path, first: str = "") -> None:
    """Open the page of several trials from a file, and wait for its first views."""
    shown_page(browser, snapshot, folder, first)
    browser.wait_for("document.querySelector('#table tbody tr')")


def shown_page(browser: Browser, snapshot: Snapshot, folder: Path, first: str = "") -> None:
    """Open the page of a snapshot from a file."""
    target = folder / "page.html"
    text = page(snapshot)
    target.write_text(text.replace("<meta http-equiv", first + WATCHED, 1), encoding="utf-8")
    browser.requests.clear()
    browser.resize(1280, 800)
    browser.open(target.as_uri())
    browser.wait_for("document.querySelector('main section')")


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
    return wait_for(lambda: target.read_bytes() if target.exists() else b"", TIMEOUT, name)


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


def test_sort_filter_columns_and_curves(chromium: Browser, tmp_path: Path) -> None:
    """The table obeys the mouse and the keys. The plot has a line for each trial with the metric,
    smoothed or not; a filter leaves its trials alone."""
    shown(chromium, document(trials=12), tmp_path)
    best = {one.id: one.best or 0.0 for one in document(trials=12).experiments[0].trials}
    assert ids(chromium) == sorted(best, key=lambda one: (-float(best[one] or 0), one))
    chromium.click("th button[data-column='hparam lr']")
    place = (
        "[...document.querySelectorAll('thead th')].findIndex(h => h.textContent.startsWith('lr'))"
    )
    rows = "[...document.querySelectorAll('[data-trial]')]"
    cells = f"{rows}.map(r => +r.children[{place}].textContent)"
    rates = chromium.js(f"return {cells}")
    assert rates == sorted(rates) and len(set(rates)) > 6
    chromium.click("th button[data-column='hparam lr']")
    assert chromium.js(f"return {cells}") == rates[::-1]
    type_filter(chromium, "state=error", "2 of 12 trials")
    assert sorted(ids(chromium)) == [3, 9]
    chromium.type("\ue00c")  # Esc
    chromium.wait_for("document.querySelectorAll('[data-trial]').length === 12")
    chromium.click(".chooser summary")
    press(chromium, ".ticks label", "Nodes")
    titles = chromium.js(
        "return [...document.querySelectorAll('thead button')].map(b => b.textContent)"
    )
    assert "Nodes" in titles and "batch_size" not in titles  # which is the same everywhere

    chromium.js("document.querySelector('#curves').scrollIntoView()")
    lines = "document.querySelectorAll('#curves .plotbox .trace path.js-line').length"
    chromium.wait_for(f"{lines} === 10")  # two trials wait
    names = chromium.js("return document.querySelector('#curves .plot').data.map(t => t.name)")
    assert {"resumed", "preempted", "failed"} <= set(names)
    chromium.choose("header select", "training/loss")
    chromium.wait_for("document.querySelector('#curves .ytitle').textContent === 'training/loss'")
    assert "not finite" in chromium.js("return document.querySelector('#curves .note').textContent")
    chromium.choose("#curves select:has([value=epochs])", "epochs")
    chromium.wait_for(
        "document.querySelector('#curves .note').textContent.startsWith("
        "'2 trials not drawn along epochs: records_per_epoch')"
    )
    type_filter(chromium, "state=running", "2 of 12 trials")
    chromium.wait_for(f"{lines} === 2")
    quiet(chromium)


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


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# Small plots get their turns only when `window.rest()` gives them.
BUSY = """<script>
window.turns = [];
requestIdleCallback = (act) => turns.push(act);
window.rest = () => turns.shift()({ didTimeout: false, timeRemaining: () => 50 });
</script>"""


def test_small_plots_are_drawn_one_by_one_while_nothing_else_is_to_do(
    chromium: Browser, tmp_path: Path
) -> None:
    """The reader's next click or key comes between them."""
    shown(chromium, document(trials=12), tmp_path, first=BUSY)
    chromium.js("document.querySelector('#curves').scrollIntoView()")
    chromium.wait_for("document.querySelector('#curves > .plotbox .trace') && turns.length === 1")
    small = "document.querySelectorAll('#curves .plots .js-plotly-plot').length"
    assert chromium.js(f"return {small}") == 0
    drawn = chromium.js(
        f"const seen = [0]; while ({small} < 3) {{ if (turns.length) rest();"
        f" await new Promise((done) => setTimeout(done, 5)); seen.push({small}); }} return seen"
    )
    assert sorted(set(drawn)) == [0, 1, 2, 3]
    quiet(chromium)


def test_smoothing_a_thinned_curve(chromium: Browser, tmp_path: Path) -> None:
    """The moving average is that of the means, which stand where they were taken."""
    made = document(trials=1)
    shown_page(chromium, made, tmp_path)
    chromium.wait_for("document.querySelector('#trial figure .main-svg')")
    chromium.js(
        "const s = document.querySelector('#trial input[type=range]'); s.value = 0.5;"
        "s.dispatchEvent(new Event('input'))"
    )
    means = made.experiments[0].trials[0].curves[0].means
    assert means is not None
    data = "document.querySelector('#trial figure .plot').data"
    chromium.wait_for(f"{data}[0].x.length === {len(means.steps)}")
    line = chromium.js(f"const {{ x, y }} = {data}[0]; return {{ x, y }}")
    assert line["x"] == means.steps
    first, second = (float(value or 0) for value in means.values[:2])
    assert line["y"][:2] == pytest.approx([first, (0.5 * first + second) / 1.5])
    quiet(chromium)


EVERY_PLOT = "curves parallel scatter heat importance rungs timeline"


def test_brush_compare_and_open(chromium: Browser, tmp_path: Path) -> None:
    """From all trials to a few, to one, and back. Every view is drawn, and can be saved as a
    picture."""
    shown(chromium, document(2, trials=12), tmp_path)
    chromium.js("document.querySelector('#parallel').scrollIntoView()")
    chromium.wait_for("document.querySelector('#parallel .scatterlayer .trace')")
    chromium.wait_for("document.querySelector('#curves.drawn')")  # which stands above it
    x, y = chromium.place("#parallel .plot")
    height = chromium.js("return document.querySelector('#parallel .plot').clientHeight")
    left = x - chromium.js("return document.querySelector('#parallel .plot').clientWidth") // 2
    top = y - height // 2 + 60
    chromium.drag([(left + 50, top - 2), (left + 50, top + 40), (left + 50, y)])  # high rates
    chromium.wait_for("document.querySelector('#parallel .count').textContent.includes(' of ')")
    press(chromium, "#parallel button", "Select these to compare")
    chromium.wait_for("document.querySelectorAll('#compare thead a').length > 1")
    headings = "[...document.querySelectorAll('#compare thead a')]"
    chosen = chromium.js(f"return {headings}.map(a => +a.textContent.slice(6))")
    rates = {
        trial.id: trial.hparams["lr"]
        for one in document(2, trials=12).experiments
        for trial in one.trials
        if trial.curves
    }
    assert min(rates[one] for one in chosen) > max(rates[one] for one in rates if one not in chosen)
    names = chromium.js(
        "return [...document.querySelectorAll('#compare tbody th')].map(h => h.textContent)"
    )
    assert "lr" in names and "batch_size" not in names
    chromium.click("#compare thead a")
    chromium.wait_for(f"document.querySelector('#trial h2').textContent === 'Trial {chosen[0]}'")
    chromium.wait_for("document.querySelectorAll('#trial .part-metrics svg').length > 0")
    assert "detslurm checkpoint download" in chromium.js(
        "return document.querySelector('#trial').innerText"
    )
    chromium.type("\ue00c")
    chromium.wait_for("document.querySelector('#trial').hidden")
    for view in EVERY_PLOT.split():
        chromium.js(f"document.querySelector('#{view}').scrollIntoView()")
        chromium.wait_for(f"document.querySelector('#{view} .plot .main-svg')")
    for kind, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        press(chromium, "#timeline button", kind)
        assert downloaded(chromium, f"timeline.{kind.lower()}").startswith(start)
    quiet(chromium)


def test_a_trial_that_was_left_keeps_no_plots(chromium: Browser, tmp_path: Path) -> None:
    """What was drawn lets go of its data, which else the window's listeners would keep on a page
    that is open for days. A trial's own page draws into the plots that it has. It shows slot-hours
    also where no figures tell how busy the slots were."""
    whole = document(trials=2)
    [one] = whole.experiments
    known, unknown = one.trials
    efficiency = {**unknown.efficiency, "slot_hours_wasted": None}
    trials = [known, msgspec.structs.replace(unknown, efficiency=efficiency)]
    part = msgspec.structs.replace(one, trials=trials)
    shown(chromium, msgspec.structs.replace(whole, experiments=[part]), tmp_path)
    facts = "[...document.querySelectorAll('#trial .part-use .facts > div')]"
    named = f"{facts}.find((one) => one.firstChild.textContent === 'Slot-hours')"
    plots = "document.querySelectorAll('#trial .part-metrics .js-plotly-plot')"
    chromium.js("window.seen = []")
    for trial in ids(chromium) * 3:
        chromium.js(f"location.hash = '#trial-{trial}'")
        chromium.wait_for(f"document.querySelector('#trial h2')?.textContent === 'Trial {trial}'")
        chromium.wait_for(f"{plots}.length === 3")
        hours = "6.7, 0.4 of them wasted" if trial == 1 else "6.7"
        assert chromium.js(f"return {named}?.lastChild.textContent") == hours
        for name, text in (
            ("Energy", "at least 2.26 kWh (50 g CO2)"),
            ("Effective training", "90 % of 50 min"),
            ("Lost time", "queue 5 min, training done again 3 min 20 s, saves 1 min 40 s"),
            ("Best interval of saves", "7 min, for about 92 % (now 20 min)"),
        ):
            other = named.replace("Slot-hours", name)
            assert chromium.js(f"return {other}?.lastChild.textContent") == text
        chromium.js(f"window.seen.push(...{plots})")
        press(chromium, "#trial button", "Compare")
        assert chromium.js(f"return [...{plots}].every((plot) => window.seen.includes(plot))")
        press(chromium, "#trial button", "Don't compare")
    gone = "window.seen.filter((plot) => !plot.isConnected)"
    assert chromium.js(f"return {gone}.length") >= 6
    assert chromium.js(f"return {gone}.filter((plot) => plot.data).length") == 0
    quiet(chromium)


def test_a_hostile_document_runs_nothing(any_browser: Browser, tmp_path: Path) -> None:
    """Every text of it is shown as text, in every view. The table that is exported holds no
    formula."""
    shown(any_browser, document(2, trials=6, hostile=True), tmp_path)
    press(any_browser, "#table button", "CSV")
    text = downloaded(any_browser, "trials.csv").decode()
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert len(rows) == 13 and len({len(row) for row in rows}) == 1
    assert not [
        cell for row in rows for cell in row if cell[:1] in "=+-@" and not _is_number(cell) and cell
    ]
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


SECTIONS = (
    "[...document.querySelectorAll('main section')].filter((one) => one.offsetParent)"
    ".map((one) => one.id || one.className)"
)
CONTENTS = "[...document.querySelectorAll('nav.contents a')].map((one) => one.textContent)"


def test_a_search_leads_with_its_failures_and_its_best_trial(
    chromium: Browser, tmp_path: Path
) -> None:
    """Reasons are grouped, curves are labelled by what differs, and every metric has its plot. Of
    several objectives the front is marked in a plot, and is a table."""
    shown(chromium, _with_front(document(trials=12)), tmp_path)
    parts = chromium.js(f"return {SECTIONS}")
    assert parts[:4] == ["failures", "summary", "table", "curves"]
    assert "compare" not in parts
    failures = chromium.js("return document.querySelector('#failures').innerText")
    assert "2 trials: the code exited with 1" in failures and "trials 3 9" in failures
    trials = document(trials=12).experiments[0].trials
    best = max(trials, key=lambda one: float(one.best or 0))
    head = chromium.js("return document.querySelector('#summary .best').innerText")
    assert f"by trial {best.id}" in head and str(best.hparams["lr"]) in head
    contents = chromium.js(f"return {CONTENTS}")
    assert contents[:4] == ["Failures", "Overview", "Trials", "Learning curves"]
    assert len(contents) == len(parts)
    chromium.js("document.querySelectorAll('nav.contents a')[3].click()")
    chromium.wait_for("document.querySelector('#curves.drawn')")
    assert chromium.js("return document.querySelector('#curves').offsetTop > 0 && scrollY > 0")
    name = chromium.js("return document.querySelector('#curves .plot').data[0].name")
    assert name.startswith(f"trial {best.id}, lr ") and best.hparams["optimizer.name"] in name
    chromium.wait_for("document.querySelectorAll('#curves figure .main-svg').length >= 3")
    small = "[...document.querySelectorAll('#curves figcaption button.link')]"
    assert chromium.js(f"return {small}.map((one) => one.textContent)") == [
        "training/loss", "training/top.5", "validation/loss"]  # fmt: skip
    chromium.js(f"{small}[2].click()")
    chromium.wait_for("document.querySelector('#curves .ytitle').textContent.endsWith('loss')")
    chromium.js("document.querySelector('#front').scrollIntoView()")
    chromium.wait_for("document.querySelectorAll('#front .plot .trace').length === 3")
    front = chromium.js("return document.querySelector('#front').textContent")
    assert "accuracy (larger is better)" in front and "memory (<= 40)" in front
    assert chromium.js(f"return {FRONT}") == [str(best.id), "1"]
    drawn = "document.querySelector('#front .plot').data.map((one) => [one.name, one.x.length])"
    groups = [["on the front", 2], ["beaten by another", 9], ["breaks a constraint", 1]]
    assert chromium.js(f"return {drawn}") == groups
    press(chromium, "#table .rows a", "2")
    chromium.wait_for("document.querySelector('#trial h2')?.textContent === 'Trial 2'")
    quiet(chromium)


FRONT = "[...document.querySelectorAll('#front tbody tr')].map((one) => one.cells[0].textContent)"


def _with_front(whole: Snapshot) -> Snapshot:
    """The document with a search by accuracy and latency, within a bound of memory."""
    [one] = whole.experiments
    best = max(one.trials, key=lambda trial: float(trial.best or 0))
    trials = [
        msgspec.structs.replace(
            trial,
            objectives={"accuracy": trial.best or 0.0, "latency": float(number), "memory": 9.0},
            front=trial.id in (1, best.id),
            feasible=number != 11 or trial.id == best.id,
        )
        for number, trial in enumerate(one.trials)
    ]
    objectives = [
        ObjectivePart(name="accuracy", smaller_is_better=False),
        ObjectivePart(name="latency", smaller_is_better=True),
        ObjectivePart(name="memory", bound="<= 40"),
    ]
    part = msgspec.structs.replace(one, trials=trials, objectives=objectives)
    return msgspec.structs.replace(whole, experiments=[part])


def test_a_single_trial_opens_as_its_own_page(chromium: Browser, tmp_path: Path) -> None:
    """Its metrics side by side, and beside them what the profiler recorded; nothing is empty."""
    made = document(trials=2)
    [one] = made.experiments
    alone = msgspec.structs.replace(one, trials=one.trials[1:], trial_count=1, message=None)
    shown_page(chromium, msgspec.structs.replace(made, experiments=[alone]), tmp_path)
    chromium.wait_for("document.querySelectorAll('#trial figure .main-svg').length >= 6")
    assert chromium.js("return document.querySelector('#trial h2').textContent") == "Trial 2"
    titles = "[...document.querySelectorAll('#trial {} bdi')].map((one) => one.textContent)"
    assert chromium.js(f"return {titles.format('.part-metrics figure')}") == [
        "loss", "top.5", "accuracy"]  # fmt: skip
    assert chromium.js(f"return {titles.format('.part-profile figure')}") == [
        "GPU busy (%)", "GPU memory free (GiB)", "CPU busy (%)"]  # fmt: skip
    place = "document.querySelector('#trial {}').getBoundingClientRect()"
    metrics, profile = place.format(".part-metrics"), place.format(".part-profile")
    assert chromium.js(f"return {metrics}.top === {profile}.top")
    assert chromium.js(f"return {metrics}.right < {profile}.left")
    first, second = (place.format(f"figure:nth-child({n})") for n in (1, 2))
    assert chromium.js(f"return {first}.top === {second}.top")
    text = chromium.js("return document.querySelector('main').innerText")
    assert "All trials" not in text and "Metric\n" not in text.partition("Trial 2")[0]
    assert one.notes in text, "what is known of the experiment stands on the page, too"
    chromium.type("\ue00c")  # there is nothing to go back to
    assert chromium.js("return document.querySelector('#all').hidden")
    chromium.resize(390, 800)
    chromium.wait_for(f"{profile}.top > {metrics}.bottom")
    chromium.wait_for("document.documentElement.scrollWidth <= 390")
    chromium.resize(1280, 800)
    quiet(chromium)


@pytest.mark.parametrize(
    ("trials", "sections"), [(0, ["summary", "table"]), (1, ["head", "hyperparameters"])]
)
def test_a_page_of_little(
    chromium: Browser, tmp_path: Path, trials: int, sections: list[str]
) -> None:
    """An experiment without trials, or without a metric, has no empty cards."""
    snapshot = document(trials=trials, points=0)
    [one] = snapshot.experiments
    waiting = [TrialPart(id=1, state="QUEUED", hparams={"lr": 0.1}) for _ in one.trials]
    one = msgspec.structs.replace(one, trials=waiting, config={}, code={}, rungs=[])
    snapshot = msgspec.structs.replace(snapshot, experiments=[one])
    shown_page(chromium, snapshot, tmp_path)
    found = [name.split()[0].removeprefix("part-") for name in chromium.js(f"return {SECTIONS}")]
    assert found[:2] == sections and not {*found[2:]} - {"experiment", "configuration"}
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
    any_browser.wait_for("document.querySelector('#trial h2')")
    any_browser.wait_for("window.refused.length >= 2")
    assert any_browser.js("return window.ran ?? 0") == 0


def test_a_long_table_prints_whole_and_keeps_the_place_of_its_reader(
    chromium: Browser, tmp_path: Path
) -> None:
    """It prints all in light colours, whatever is on the screen; afterwards it is as before.
    Ticking a trial far down neither scrolls the table nor loses the focus."""
    shown(chromium, document(trials=160, points=10), tmp_path)
    chromium.js("document.querySelector('header [title=\"Light or dark\"]').click()")
    rows = "document.querySelectorAll('[data-trial]').length"
    assert chromium.js(f"return {rows}") < 160
    theme = "document.documentElement.dataset.theme"
    chromium.wait_for("window.Plotly")
    chromium.js("dispatchEvent(new Event('beforeprint'))")
    assert chromium.js(f"return [{rows}, {theme}]") == [160, "light"]
    assert chromium.js("return document.querySelectorAll('.plot .main-svg').length") > 6
    chromium.js("dispatchEvent(new Event('afterprint'))")
    assert chromium.js(f"return {theme}") == "dark"

    frame = "document.querySelector('#table .tall')"
    chromium.js(f"{frame}.scrollTo(0, 1e6)")
    chromium.wait_for(f"{rows} === 160")
    chromium.js(f"{frame}.scrollTo(0, 2500)")
    down = chromium.js(f"return {frame}.scrollTop")
    assert down > 0
    chromium.js("document.querySelector('[data-trial=\"130\"] input').focus({preventScroll: true})")
    chromium.type(" ")
    chromium.wait_for("document.querySelector('[data-trial=\"130\"] input').checked")
    assert chromium.js(f"return {frame}.scrollTop") == down
    named = "document.activeElement.getAttribute('aria-label')"
    assert chromium.js(f"return {named}") == "Compare trial 130"


def test_a_panel_keeps_its_height_until_it_is_drawn(chromium: Browser, tmp_path: Path) -> None:
    """Whatever is below stays in its place; what prints says that points are missing."""
    shown(chromium, document(trials=12), tmp_path, HOLDING)
    chromium.js("document.querySelector('#curves').scrollIntoView()")
    chromium.wait_for("asked > 0")
    assert chromium.js("return document.querySelector('#curves').offsetHeight") >= 440
    chromium.js(
        "for (const rule of [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]))"
        " if (rule.media?.mediaText === 'print') rule.media.mediaText = 'all';"
        "dispatchEvent(new Event('beforeprint'))"
    )
    missing = "getComputedStyle(document.querySelector('{}'), '::after').content"
    assert "print it again" in chromium.js(f"return {missing.format('#curves')}")
    assert chromium.js(f"return {missing.format('#parallel')}") == "none"
    chromium.js("location.hash = '#trial-1'")
    chromium.wait_for("document.querySelector('#trial figure')")
    assert "print it again" in chromium.js(f"return {missing.format('#trial figure .plot')}")
    chromium.js("release(); location.hash = ''")
    chromium.wait_for("document.querySelector('#curves.drawn .main-svg')")
    assert chromium.js(f"return {missing.format('#curves')}") == "none"
    quiet(chromium)
