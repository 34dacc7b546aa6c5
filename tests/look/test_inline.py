"""`Experiment.report()` in a notebook."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

from tests.look.browser import Browser
from tests.sdk.scenes import Scene

pytest.importorskip("plotly")


def test_a_notebook_shows_it_in_a_frame(tmp_path: Path, chromium: Browser) -> None:
    """Apart from the notebook: it works there, and reaches nothing of it."""
    scene = Scene(tmp_path / "store")
    scene.run(scene.experiment(1), 0, losses=[0.5, 0.25], end="completed")
    report = scene.client.experiment(1).report()
    assert repr(report) == "InlineReport('Experiment 1')"
    report.save(tmp_path / "saved.html")
    frame = report._repr_html_()
    assert (
        html.unescape(frame.partition('srcdoc="')[2].rpartition('"')[0])
        == (tmp_path / "saved.html").read_text()
    )
    (tmp_path / "notebook.html").write_text(f"<!doctype html><body><h1>Notebook</h1>{frame}")
    # On a busy machine a driven Chromium once in some twenty loads leaves out the script of such a
    # frame, whole as it is, and says nothing of it: why is not known. A reader would load it again.
    for _ in range(3):
        chromium.open((tmp_path / "notebook.html").as_uri())
        assert chromium.js("return document.querySelector('iframe').contentDocument") is None
        chromium.enter_frame()
        if chromium.js("return document.querySelector('#page').hasChildNodes()"):
            break
        chromium.leave_frame()
    chromium.wait_for("document.querySelector('#trial h2')?.textContent === 'Trial 1'")
    chromium.leave_frame()
