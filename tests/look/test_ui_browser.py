"""`detslurm ui` in a browser: from the address with the secret to a page that is followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.waiting import wait_for
from tests.look.browser import TIMEOUT, Browser
from tests.look.ui_process import ui
from tests.sdk.scenes import Scene

pytest.importorskip("plotly")


def wait_for_page(browser: Browser, condition: str) -> None:
    """Wait until an expression is true there; between two pages none can be evaluated."""

    def is_true() -> bool:
        try:
            return bool(browser.js(f"return {condition}"))
        except AssertionError:
            return False

    wait_for(is_true, TIMEOUT, condition)


def test_from_the_list_to_a_report_and_back(chromium: Browser, tmp_path: Path) -> None:
    """The secret leaves the address at once; nothing is asked of any other machine."""
    scene = Scene(tmp_path / "store")
    for name in ("first", "second"):
        scene.run(scene.experiment(1, name=name), losses=[0.5, 0.25], end="completed")
    runtime = tmp_path / "run"
    runtime.mkdir(0o700)
    env = {"DETSLURM_ROOT": str(scene.root), "DETSLURM_SITE": "", "XDG_RUNTIME_DIR": str(runtime),
           "TZ": "Asia/Kathmandu"}  # fmt: skip
    with ui(env, "--port", "0") as running:
        home, known = f"http://localhost:{running.to}/", len(chromium.requests)
        chromium.open(f"{home}{running.path.lstrip('/')}")
        assert chromium.js("return location.href") == home
        assert chromium.js("return document.cookie") == ""
        local = "new Date(time.dateTime).toString().includes(' ' + time.textContent.split(' ')[1])"
        times = "[...document.querySelectorAll('time')]"
        assert chromium.js(f"return {times}.length > 2 && {times}.every((time) => {local})")
        assert "this browser's time zone" in chromium.js("return document.body.innerText")
        chromium.js("document.querySelector('a[href=\"experiments/2/\"]').click()")
        wait_for_page(chromium, "document.title === 'Experiment 2: second'")
        wait_for_page(chromium, "document.body.innerText.includes('0.25')")
        chromium.js("document.querySelector('nav a').click()")
        wait_for_page(chromium, f"location.href === '{home}' && document.readyState === 'complete'")
        chromium.js("for (const box of document.querySelectorAll('[name=id]')) box.click()")
        chromium.js("document.querySelector('main section button').click()")
        wait_for_page(chromium, "document.body.innerText.includes('2 experiments')")
        assert chromium.js("return location.pathname") == "/experiments/2,1/"
        assert not chromium.js("return document.querySelector('nav a[href=edit]')")
        chromium.open(f"{home}experiments/1/")
        wait_for_page(chromium, "!!document.querySelector('nav a[href=edit]')")
        chromium.js("document.querySelector('nav a[href=edit]').click()")
        wait_for_page(chromium, "!!document.querySelector('[name=notes]')")
        chromium.js("document.querySelector('[name=notes]').value = 'a note'")
        chromium.js("document.querySelector('[name=archived]').click()")
        chromium.js("document.querySelector('form.edit button').click()")
        wait_for_page(chromium, f"location.href === '{home}' && document.readyState === 'complete'")
        assert "first" not in chromium.js("return document.querySelector('tbody').innerText")
        assert (scene.client.stored(1).notes, scene.client.stored(1).archived) == ("a note", True)
        chromium.resize(390, 800)
        chromium.open(f"{home}?group=project")
        shown = chromium.js("return document.querySelector('tbody').innerText")
        assert "COMPLETED" in shown and "100%" in shown and "alice" not in shown
        table, scroll = "document.querySelector('table')", "document.querySelector('.scroll')"
        assert chromium.js(f"return {table}.offsetWidth <= {scroll}.clientWidth")
        wide = "document.documentElement.scrollWidth <= window.innerWidth"
        assert chromium.js(f"return {wide}")
        assert {url.startswith(home) for url in chromium.requests[known:]} == {True}
