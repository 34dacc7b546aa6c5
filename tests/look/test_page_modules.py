"""The modules of the page, each by itself: what they import, and what they compute."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, get_args

import pytest

from detslurm._base.states import RunOutcome
from detslurm.look.report import _EXPORT, _IMPORT, MODULES, _folder, _scoped
from tests.look.browser import Browser

ABSENT = "absent"


def source(name: str) -> str:
    return (_folder() / f"{name}.js").read_text()


def called(browser: Browser, module: str, expression: str) -> Any:
    """What an expression gives that uses a module, in a page with nothing else."""
    browser.open("about:blank")
    code = "".join(_scoped(name, source(name)) for name in MODULES[: MODULES.index(module) + 1])
    return browser.js(f"{code}; return ${module}.{expression}")


def test_modules_import_what_earlier_ones_export() -> None:
    """They are joined in this order, and no name of one is seen by another by chance."""
    exported: dict[str, set[str]] = {}
    for name in MODULES:
        for names, other in _IMPORT.findall(source(name)):
            assert other in exported, f"{name} imports {other}, which comes later"
            wanted = {one.strip() for one in names.strip("{} ").split(",")}
            assert wanted <= exported[other], f"{name} imports {wanted - exported[other]}"
        exported[name] = set(_EXPORT.findall(source(name)))
        assert exported[name] or name == "main"
    files = {Path(str(entry)).stem for entry in _folder().iterdir() if entry.name.endswith(".js")}
    assert files == set(MODULES)


def importance(browser: Browser, values: list[Any], results: list[float]) -> Any:
    """The measure for these trials; `ABSENT` of a trial whose space has no such hyperparameter."""
    given = f"{json.dumps(values)}, {json.dumps(results)}".replace(json.dumps(ABSENT), "undefined")
    return called(browser, "importance_measure", f"importance({given})")


def test_importance_tells_what_matters_from_chance(chromium: Browser) -> None:
    """Also a best value in the middle, which no correlation sees; of few trials nothing."""
    chance = random.Random(1)
    values = [chance.random() for _ in range(100)]
    valley = importance(chromium, values, [abs(value - 0.5) for value in values])
    assert valley["share"] > 0.6 > 0.2 > valley["noise"] and abs(valley["direction"]) < 0.3
    rising = importance(chromium, values, [3 * value for value in values])
    assert rising["share"] > 0.9 and rising["direction"] == pytest.approx(1)
    names = [chance.choice(["sgd", "adam"]) for _ in values]
    split = importance(chromium, names, [float(name == "sgd") for name in names])
    assert split["share"] == pytest.approx(1) and split["direction"] is None
    none = importance(chromium, values, [chance.random() for _ in values])
    assert none["share"] < 1.5 * none["noise"] < 0.2
    assert importance(chromium, values[:9], values[:9]) is None
    each = [f"name {place}" for place in range(100)]  # nothing repeats
    assert importance(chromium, each, values) is None


def test_importance_of_trials_of_different_spaces(chromium: Browser) -> None:
    """A trial that was run by hand, or that another experiment searched, has other
    hyperparameters: those that it lacks are measured on the others, and no constant is shown."""
    chance = random.Random(3)
    rates = [10 ** chance.uniform(-4, -1) for _ in range(30)]
    results = [rate + chance.random() / 100 for rate in rates]
    alone = importance(chromium, rates, results)
    for strange in (ABSENT, None, "auto", [1e-3]):
        found = importance(chromium, [*rates, strange], [*results, 0.001])
        assert found == alone
    assert importance(chromium, [*[64] * 30, ABSENT], [*results, 9]) is None
    assert importance(chromium, [*[64] * 30, 128], [*results, 9]) is None
    # Two spaces: a half has rates, the others names.
    mixed = importance(chromium, [*rates, *["a", "b"] * 15], [*results, *[5, 6] * 15])
    assert mixed["groups"] == 7 and mixed["share"] > 0.9
    only = importance(chromium, [*rates[:9], *[ABSENT] * 30], [*results[:9], *results])
    assert only is None, "too few trials have it"


def test_hyperparameters_that_differ_do_so_among_trials_that_have_them(chromium: Browser) -> None:
    """One that a trial lacks is a constant if all others agree."""
    hparams = [{"lr": 0.1, "width": 64}, {"lr": 0.2, "width": 64}, {}, {"lr": 0.1, "depth": 3}]
    trials = json.dumps(
        [{"id": n, "state": "COMPLETED", "hparams": h} for n, h in enumerate(hparams)]
    )
    names = MODULES[: MODULES.index("trials") + 1]
    chromium.open("about:blank")
    code = "".join(_scoped(name, source(name)) for name in names)
    load = f"$state.load({{experiments: [{{id: 1, trials: {trials}}}]}})"
    assert chromium.js(f"{code}; {load}; return $trials.differingHparams()") == ["lr"]


def test_chance_seldom_passes_the_mark(chromium: Browser) -> None:
    """Of 40 hyperparameters that do nothing about one in twenty passes the mark."""
    chance = random.Random(2)
    results = [chance.random() for _ in range(20)]
    columns = [[chance.random() for _ in results] for _ in range(40)]
    measure = f"{json.dumps(columns)}.map((one) => $importance_measure.importance(one, {results}))"
    chromium.open("about:blank")
    code = _scoped("importance_measure", source("importance_measure"))
    found = chromium.js(f"{code}; return {measure}")
    assert sum(one["share"] > one["noise"] for one in found) <= 5


def test_cells_of_csv_are_no_formulas(chromium: Browser) -> None:
    """Texts that begin as one get an apostrophe; numbers stay numbers."""
    columns = "[{title: '=1+1', get: (row) => row}]"
    rows = ["=1+1", " =1", "\t@x", "-x", -1.5, None, 'a "b", c', {"a": 1}, "-9007199254740993"]
    text = called(chromium, "export", f"csv({columns}, {json.dumps(rows)})")
    assert text.split("\r\n") == ["'=1+1", "'=1+1", "' =1", "'\t@x", "'-x", "-1.5", "",
                                  '"a ""b"", c"', '"{""a"":1}"',
                                  "-9007199254740993", ""]  # fmt: skip


def test_long_integers_are_written_and_filtered_whole(chromium: Browser) -> None:
    """Which JavaScript's numbers would round: they are texts, and no strings in YAML."""
    texts = ("1234567890123456", "9007199254740991", "0123456789012345678")
    config = json.dumps(
        {"seed": "-9007199254740993", **{f"text{n}": t for n, t in enumerate(texts)}}
    )
    expected = "\n".join(
        ["seed: -9007199254740993", *(f'text{n}: "{text}"' for n, text in enumerate(texts))]
    )
    assert called(chromium, "yaml", f"yaml({config})") == expected
    columns = "[{title: 'seed', key: 'seed', get: (row) => row, show: String}]"
    long = '["9007199254740993", "18446744073709551615"]'
    for rows, typed, found in (
        (long, "seed=9007199254740993", 1),
        (long, "seed>10000000000000000", 1),
        ("[0.5]", "seed<0.6", 1),
        ("[0.5]", "seed<0,1", 0),  # which is no number
    ):
        matching = f"{rows}.filter($filter.matcher({json.dumps(typed)}, {columns})).length"
        chromium.open("about:blank")
        names = MODULES[: MODULES.index("filter") + 1]
        code = "".join(_scoped(name, source(name)) for name in names)
        assert chromium.js(f"{code}; return {matching}") == found


@pytest.mark.parametrize(("smaller", "best"), [(True, "0.5 (trial 2)"), (False, "0.7 (trial 4)")])
def test_of_equal_results_the_first_is_the_best(
    chromium: Browser, smaller: bool, best: str
) -> None:
    """As in lists and descriptions."""
    results = (None, 0.5, 0.6, 0.7, 0.5, 0.7, "inf")
    trials = [
        {"id": number, "state": "COMPLETED", "best": value}
        for number, value in enumerate(results, 1)
    ]
    one = {"id": 1, "trials": trials, "trial_count": len(trials), "smaller_is_better": smaller}
    chromium.open("about:blank")
    names = MODULES[: MODULES.index("summary") + 1]
    code = "".join(_scoped(name, source(name)) for name in names)
    loaded = f"{code}; $state.load({json.dumps({'experiments': [one]})})"
    drawn = "const view = $summary.summaryView(); view.draw(); return view.element.textContent"
    value, _, trial = best.strip(")").partition(" (")
    assert f"Best result {value} by {trial}" in chromium.js(f"{loaded}; {drawn}")


def test_curves_keep_their_gaps(chromium: Browser) -> None:
    """What is not finite is a gap, on a log axis also what is not above 0; smoothing keeps it."""
    curve = json.dumps({"steps": [1, 2, 3, 4, 5], "values": [4, None, "inf", 0, 2]})
    assert called(chromium, "curve_points", f"heights({curve}, false)") == [4, None, None, 0, 2]
    assert called(chromium, "curve_points", f"heights({curve}, true)") == [4, None, None, None, 2]
    smooth = called(chromium, "curve_points", "smoothed([4, null, 2], 0.5)")
    assert smooth[:2] == [4, None] and smooth[2] == pytest.approx(8 / 3)


@pytest.mark.parametrize(
    ("low", "step", "labels"),
    [
        (1000, 1, ["1,000", "1,005", "1,010", "1,015", "1,020"]),
        (1000, 0.5, ["1,000", "1,002", "1,004", "1,006", "1,008", "1,010"]),
        (0.12, 1e-5, ["0.12", "0.12005", "0.1201", "0.12015", "0.1202"]),
        (-20, 2, ["-20", "-10", "0", "10", "20"]),
        (0.000253, 0.00371, ["0.001", "0.01"]),  # whose values span more than a decade
        (3.17e-6, 1e-3, ["1e-5", "0.0001", "0.001", "0.01"]),
    ],
)
def test_an_axis_has_numbers_that_a_person_would_write(
    chromium: Browser, low: float, step: float, labels: list[str]
) -> None:
    """However little its values differ."""
    values = [low + n * step for n in range(21)]
    found = called(chromium, "scales", f"axisOf('x', {values}).labels")
    assert [text for _, text in found] == labels


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        ("0.000253, 0.0738, 8, true", [2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1]),
        ("0.0234, 0.948, 8, false", [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ("1e-9, 1, 8, true", [1e-9, 1e-7, 1e-5, 1e-3, 0.1, 1]),
        ("117, 118.9, 8, false", [117, 117.5, 118, 118.5, 119]),
    ],
)
def test_cells_of_a_heat_map_end_at_round_numbers(
    chromium: Browser, arguments: str, numbers: list[float]
) -> None:
    """All values lie between the first and the last."""
    found = called(chromium, "scales", f"roundNumbers({arguments})")
    assert found == pytest.approx(numbers)


@pytest.mark.parametrize(
    ("value", "text"),
    [(3e-5, "3e-5"), (12_345_678.9, "1.2346e7"), (1234.56, "1,234.6"), (0.5, "0.5")],
)
def test_numbers_are_written_as_people_do(chromium: Browser, value: float, text: str) -> None:
    """Without zeros that say nothing."""
    assert called(chromium, "format", f"number({value})") == text


def test_no_sign_of_the_pages_is_missing_from_common_fonts() -> None:
    """All are in WGL4, which the fonts of every system have, so that none becomes a box."""
    files = [one for one in _folder().iterdir() if one.name.endswith((".js", ".css"))]
    listing = Path(str(_folder())).parent / "listing.py"
    texts = {one.name: one.read_text() for one in (*files, listing)}
    strange = {
        (name, sign) for name, text in texts.items() for sign in text if not sign.isascii()
    } - {(name, sign) for name in texts for sign in "–…−×∞←↑→↓‹›•·µé"}
    assert strange == set()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min"), (3661, "1 h 1 min"), (90_000, "1 d 1 h"), (None, "–")],
)
def test_spans_have_two_units(chromium: Browser, seconds: float | None, text: str) -> None:
    """And no decimals."""
    assert called(chromium, "format", f"span({json.dumps(seconds)})") == text


def test_every_end_of_a_run_has_its_word(chromium: Browser) -> None:
    """And the timeline draws it."""
    outcomes = list(get_args(RunOutcome))
    chromium.open("about:blank")
    code = _scoped("outcomes", source("outcomes"))
    words = chromium.js(
        f"{code}; return {json.dumps(outcomes)}.map((outcome) => $outcomes.ending({{outcome}}))"
    )
    assert dict(zip(outcomes, words, strict=True))["ended"] == "ended by Slurm"
    kinds = source("timeline").partition("const KINDS = {")[2].partition("};")[0]
    assert [word for word in words if f"{word}:" not in kinds and f'"{word}":' not in kinds] == []


def test_a_run_that_began_from_nothing_has_resumed_nothing(chromium: Browser) -> None:
    """Its restart shows as the failure before it alone."""
    runs = [
        {"number": 1, "resumed_steps": 0, "steps": 5, "outcome": "restart"},
        {"number": 2, "resumed_steps": 0, "steps": 6, "outcome": "restart"},
        {"number": 3, "resumed_steps": 4, "steps": 6, "outcome": None},
    ]
    events = f"events({json.dumps({'runs': runs})}).map((one) => one.kind)"
    assert called(chromium, "curve_points", events) == ["failed", "failed", "resumed"]
