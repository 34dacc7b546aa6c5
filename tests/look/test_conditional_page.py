"""The page of a search with conditions: what a trial does not have is an empty cell."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from detslurm.look.document import Snapshot
from detslurm.searcher import RandomStream, draw
from detslurm.store.curve import flat
from tests.look.browser import Browser
from tests.look.documents import document
from tests.look.test_report_page import EVERY_PLOT, quiet, shown

pytest.importorskip("plotly")

SPACE = {
    "optimizer": {
        "type": "choice",
        "vals": [
            {"name": "adam", "beta1": {"type": "double", "minval": 0.8, "maxval": 0.99}},
            {"name": "sgd", "decay": {"type": "log", "base": 10, "minval": -1.5, "maxval": -1}},
        ],
    }
}
CELLS = """
const heads = [...document.querySelectorAll("#table thead th")].map((head) => head.textContent);
const at = (name) => heads.findIndex((head) => head.startsWith(`optimizer.${name}`));
const cells = (row) => ["name", "beta1", "decay"].map((name) => row.children[at(name)].textContent);
return [...document.querySelectorAll("[data-trial]")].map(cells);
"""


def conditional() -> Snapshot:
    """A search over adam and sgd, of 24 trials."""
    whole, stream = document(trials=24), RandomStream(3)
    [one] = whole.experiments
    trials = [
        msgspec.structs.replace(trial, hparams=dict(flat(draw(SPACE, stream))))
        for trial in one.trials
    ]
    config = {**one.config, "hyperparameters": SPACE}
    part = msgspec.structs.replace(one, trials=trials, config=config)
    return msgspec.structs.replace(whole, experiments=[part])


def test_absent_hyperparameters_are_empty_cells(chromium: Browser, tmp_path: Path) -> None:
    """In the table; every plot is drawn, and leaves out the trials that lack it."""
    snapshot = conditional()
    shown(chromium, snapshot, tmp_path)
    rows = chromium.js(CELLS)
    assert {name for name, _, _ in rows} == {"adam", "sgd"}
    for name, beta1, decay in rows:
        assert (beta1 == "") == (name == "sgd") and (decay == "") == (name == "adam")
    for view in EVERY_PLOT.split():
        chromium.js(f"document.querySelector('#{view}').scrollIntoView()")
        chromium.wait_for(f"document.querySelector('#{view} .plot .main-svg')")
    traces = "document.querySelector('#scatter .plot').data"
    points = chromium.js(f"return {traces}.map((trace) => trace.x.length)")
    assert len(set(points)) > 1 and min(points) > 0, points
    axes = "document.querySelector('#parallel .plot').layout.annotations.map((one) => one.text)"
    assert "<b>optimizer.decay (log)</b>" in chromium.js(f"return {axes}")
    text = chromium.js("return document.querySelector('main').innerText")
    assert "undefined" not in text and "NaN" not in text
    quiet(chromium)
