"""Take the pictures of the documentation: a real search, looked at in a browser and a terminal.

Run it in the repository: python scripts/screenshots.py. It needs Chromium and its driver, and takes
some minutes, for a search of examples/search is trained first.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
IMAGES = REPOSITORY / "docs" / "images"
PAGES = {
    "report": ("", None, 1500),
    "report-search": ("", "parallel", 1200),
    "report-trial": ("#trial-{best}", None, 1000),
}
"""By picture: what follows in the address, the view at its top, its height in pixels."""


def main() -> None:
    """Train, and replace the pictures."""
    with tempfile.TemporaryDirectory(prefix="detslurm-") as folder:
        os.environ["DETSLURM_ROOT"] = f"{folder}/store"
        best = searched()
        page = Path(folder, "report.html")
        detslurm("report", "1", "-o", str(page))
        window = Path(folder, "top.svg")
        window.write_text(asyncio.run(terminal()))
        IMAGES.mkdir(exist_ok=True)
        photograph(page, best, window)


def searched() -> int:
    """The best trial of a search that was trained on this machine."""
    from detslurm.sdk import Client

    detslurm("submit", "adaptive_asha.yaml", "--cluster", "local", "--follow")
    best = Client().experiment(1).view.best_trial
    assert best is not None
    return best


def detslurm(*words: str) -> None:
    """Run a command in the folder of the example."""
    command = [sys.executable, "-m", "detslurm", *words]
    subprocess.run(command, cwd=REPOSITORY / "examples" / "search", check=True)


def photograph(page: Path, best: int, window: Path) -> None:
    """Save what a browser shows of the report, and of the terminal's window."""
    sys.path.insert(0, str(REPOSITORY))
    from tests.look.browser import browser

    with browser("chromium") as shown:
        for name, (part, view, height) in PAGES.items():
            shown.resize(1200, height)
            shown.open("about:blank")
            shown.open(page.as_uri() + part.format(best=best))
            shown.wait_for("document.querySelector('.main-svg')")
            if view is not None:
                shown.js(f"document.getElementById({view!r}).scrollIntoView()")
                shown.js("scrollBy(0, -64)")  # the bar at the top covers that
            shown.js("await new Promise((done) => setTimeout(done, 1500))")  # plots come late
            shown.screenshot(IMAGES / f"{name}.png")
        shown.resize(1480, 900)
        shown.open(window.as_uri())
        shown.screenshot(IMAGES / "top.png")


async def terminal() -> str:
    """What `detslurm top` shows of the search's curves in a terminal of 120 columns, as SVG."""
    from detslurm.look.top.app import TopApp
    from detslurm.look.top.watcher import Watcher
    from detslurm.sdk.client import Client

    app = TopApp(Watcher(), lambda warn: Client(warn=warn))
    async with app.run_test(size=(120, 33)) as pilot:
        await pilot.pause(3.0)  # a thread reads the store
        await pilot.press("2")
        await pilot.pause(3.0)
        return app.export_screenshot(title="detslurm top")


if __name__ == "__main__":
    main()
