"""Take the pictures of the documentation: a real search, looked at in a browser and a terminal.

Run it in the repository: python scripts/screenshots.py. It needs Chromium and its driver, and takes
some minutes, for a search of examples/search is trained first. `--situations` takes those of
docs/images/pages alone: made-up experiments at three widths, light and dark, on a sheet each.
"""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
IMAGES = REPOSITORY / "docs" / "images"
PAGES = {
    "report": ("", None, 1500),
    "report-curves": ("", "curves", 730),
    "report-search": ("", "parallel", 1200),
    "report-trial": ("#trial-{best}", None, 1000),
}
"""By picture: what follows in the address, the view at its top, its height in pixels."""
SITUATIONS = {
    "search": (12, "", ""),
    "search-curves": (12, "", "#curves"),
    "search-hyperparameters": (24, "", "#heat"),
    "search-compare": (12, "", "#compare"),
    "several-experiments": (-12, "", ""),
    "trial-of-a-search": (12, "#trial-2", ""),
    "trial-artifacts": (12, "#trial-2", ".part-artifacts"),
    "trial-failed": (12, "#trial-3", ""),
    "trial-running": (12, "#trial-4", ""),
    "trial-waiting": (12, "#trial-5", ""),
    "single-trial": (1, "", ""),
}
"""By sheet: how many trials (of each of two experiments if negative), the address, the view."""
WIDTHS = (1280, 800, 390)
HEIGHT = 900
# Six pictures on a sheet of half their size, small enough for a repository.
SHEET = """
const images = await Promise.all(%s.map(async (data) => {
  const image = new Image(); image.src = `data:image/png;base64,${data}`;
  await image.decode(); return image; }));
const sheet = document.createElement("canvas");
const half = (image) => image.width / 2 + 8;
sheet.width = images.reduce((sum, image) => sum + half(image), 0); sheet.height = %d / 2;
const pen = sheet.getContext("2d"); let x = 0;
for (const image of images) {
  pen.drawImage(image, x, 0, image.width / 2, image.height / 2); x += half(image); }
return sheet.toDataURL("image/webp", 0.75).split(",")[1];
"""


def main() -> None:
    """Train, and replace the pictures."""
    sys.path.insert(0, str(REPOSITORY))
    sheets(IMAGES / "pages")
    if "--situations" in sys.argv:
        return
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


def sheets(target: Path) -> None:
    """Save a sheet of pictures of each situation."""
    from detslurm.look.report import page
    from tests.look.browser import browser
    from tests.look.documents import document, with_artifacts

    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, browser("chromium") as shown:
        file, picture = Path(folder, "page.html"), Path(folder, "picture.png")
        for name, (trials, part, view) in SITUATIONS.items():
            file.write_text(
                page(with_artifacts(document(2 if trials < 0 else 1, trials=abs(trials))))
            )
            taken = []
            for width in WIDTHS:
                for theme in ("light", "dark"):
                    shown.resize(width, HEIGHT)
                    shown.open("about:blank")
                    shown.open(file.as_uri() + part)
                    shown.js(READY % (theme, view))
                    shown.screenshot(picture)
                    taken.append(base64.b64encode(picture.read_bytes()).decode())
            shown.open("about:blank")
            data = base64.b64decode(shown.js(SHEET % (taken, HEIGHT)))
            (target / f"{name}.webp").write_bytes(data)


READY = """
if (document.querySelector("#theme").textContent.toLowerCase() === "%s")
  document.querySelector("#theme").click();
const view = "%s";
if (view === "#compare")
  [...document.querySelectorAll("[data-trial] input")].slice(0, 3).forEach((box) => {
    document.querySelector(`[data-trial="${box.closest("tr").dataset.trial}"] input`).click(); });
for (let turn = 0; turn < 4; turn++) {
  if (view) document.querySelector(view).scrollIntoView();
  await new Promise((done) => setTimeout(done, 350)); }
const empty = () => [...document.querySelectorAll("figure .plot:empty")].some((plot) => {
  const { top, height } = plot.getBoundingClientRect(); return height && top < innerHeight; });
while (empty()) await new Promise((done) => setTimeout(done, 50));
"""


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
