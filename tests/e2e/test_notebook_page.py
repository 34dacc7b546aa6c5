"""JupyterLab in a job, through the printed line and in a browser, until the job is preempted."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.distributed.ranks import free_port
from tests.e2e.desk import Desk
from tests.envelope import unwrap
from tests.look.browser import Browser, browser, missing
from tests.look.test_portals import SSHD, PortalUser, listens, sshd

pytest.importorskip("jupyterlab")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.nightly,
    pytest.mark.skipif(bool(missing("chromium")), reason="no chromium"),
    pytest.mark.skipif(not SSHD.exists(), reason=f"{SSHD} (openssh-server) is not installed"),
]

CELL = """\
import atexit, time
atexit.register(lambda: open("exited", "w").close())
print(6 * 7, flush=True)
try:
    time.sleep(600)
finally:
    open("left", "w").close()
"""
SHIFT, ENTER = "\ue008", "\ue007"


def _document() -> str:
    """A notebook with that cell and an empty one."""
    empty: dict[str, object] = {
        "cell_type": "code",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }
    cells = [{**empty, "id": f"c{n}", "source": text} for n, text in enumerate((CELL, ""))]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel}
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def _run_the_first_cell(page: Browser, url: str) -> None:
    page.open(url)
    page.wait_for("document.querySelectorAll('.jp-Notebook .jp-Cell .cm-content').length === 2")
    page.wait_for("document.body.textContent.includes('(ipykernel) | Idle')")
    page.click(".jp-Notebook .jp-Cell .cm-content")
    page.press(ENTER, holding=SHIFT)
    page.wait_for("document.querySelector('.jp-OutputArea-output')?.textContent.includes('42')")


def test_a_preempted_notebook_saves_what_can_be_saved(desk: Desk, site: Cluster) -> None:
    """The page its document, a running cell in `finally`, the kernel in `atexit`; then the job is
    over, and is not queued again."""
    folder = desk.write("lab/x.ipynb", _document()).parent
    cpu = ("--config", "slurm.slot_type=cpu", "--config", "slurm.sbatch_args=[--exclusive]")
    done = desk.run("notebook", "start", *cpu, "--pool", "low", "--json", cwd=folder)
    found = unwrap(done.stdout)
    port, token = free_port(), found["url"].partition("token=")[2]
    place = PortalUser(folder, desk.user.uid, desk.user.env)
    command, *words = shlex.split(found["tunnel"].replace("8888:", f"{port}:", 1))
    with sshd(place) as config, place.runs([command, "-F", config, *words]) as client:
        listens(port, client)
        with browser("chromium") as page:
            _run_the_first_cell(page, f"http://localhost:{port}/lab/tree/x.ipynb?token={token}")
            page.click(".jp-Notebook .jp-Cell:nth-of-type(2) .cm-content")
            page.type("unsaved = 1")
            high = ["-p", "high", "-w", site.job(desk.job(found["id"]))["NodeList"]]
            desk.user.run("sbatch", *high, "--exclusive", "-o", "/dev/null", "--wrap=true")
            page.wait_for("document.body.textContent.includes('The job of this notebook ends')")
            wait_for(lambda: "unsaved = 1" in (folder / "x.ipynb").read_text(), 60, "the document")
    desk.wait_for_state(found["id"], "COMPLETED", "ERROR")
    assert [Path(folder / name).exists() for name in ("left", "exited")] == [True, True]
    assert "Open pages save their documents, running cells are interrupted" in desk.log(found["id"])
    assert desk.outcomes(found["id"]) == ["completed"]
