"""`detslurm report`: which experiments, into which file."""

from __future__ import annotations

import json
import os
import re
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from detslurm.look import report
from detslurm.sdk.submission.context import collect
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import Scene

pytest.importorskip("plotly")


@pytest.fixture
def work(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory beside a store with two experiments of two trials each."""
    for _ in range(2):
        experiment = scene.experiment(2)
        scene.run(experiment, 0, losses=[0.5, 0.25], end="completed")
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def data_of(path: Path) -> Any:
    """The document that a page holds."""
    text = path.read_text()
    found = re.search(r'<script type="application/json" id="snapshot">(.*?)</script>', text)
    assert found
    return json.loads(found[1])


def trials_of(path: Path) -> dict[int, list[int]]:
    """The trials of each experiment of a page."""
    return {one["id"]: [t["id"] for t in one["trials"]] for one in data_of(path)["experiments"]}


def test_a_report_is_no_code(work: Path, detslurm: Detslurm) -> None:
    """The next submission of the directory that it was written to leaves it out."""
    detslurm("report", 1, "-o", "searches.html")
    found = collect(work)
    assert found.files == () and found.notes == ()


def test_a_report_is_a_file_with_everything_but_secrets(work: Path, detslurm: Detslurm) -> None:
    """Named after the experiment, with the mode that the user's new files have."""
    before = os.umask(0o027)
    try:
        done = detslurm("report", 1)
    finally:
        os.umask(before)
    target = work / "experiment-1.html"
    assert done.status == 0 and "Wrote experiment-1.html (" in done.out
    assert list(work.iterdir()) == [target] and target.stat().st_mode & 0o777 == 0o640
    assert trials_of(target) == {1: [1, 2]}
    (experiment,) = data_of(target)["experiments"]
    assert experiment["config"]["data"]["secrets"] == {"token": "********"}
    assert "https://" not in re.sub(r"<script.*?</script>", "", target.read_text(), flags=re.S)


def test_which_experiments_and_trials(work: Path, detslurm: Detslurm) -> None:
    """Several at once, or trials alone."""
    assert detslurm("report", 1, 2).status == 0
    assert trials_of(work / "experiments-1-2.html") == {1: [1, 2], 2: [3, 4]}
    answer = detslurm("report", "-t", 2, "-t", 3, "-o", "two.html", "--json").data
    assert answer["path"] == str(work / "two.html") and answer["experiments"] == [1, 2]
    assert trials_of(work / "two.html") == {1: [2], 2: [3]}
    assert "name an experiment" in detslurm("report").err
    assert "trial 3 is one of experiment 2" in detslurm("report", 1, "-t", 3).err
    assert detslurm("report", 9).status == 1


def test_only_files_are_replaced(work: Path, detslurm: Detslurm) -> None:
    """And what was there stays until the new page is whole."""
    (work / "old.html").write_text("old")
    (work / "folder").mkdir()
    os.mkfifo(work / "pipe")
    (work / "link.html").symlink_to("old.html")
    assert detslurm("report", 1, "-o", "folder").status == 2
    assert "is not a file" in detslurm("report", 1, "-o", "pipe").err
    assert detslurm("report", 1, "-o", "link.html").status == 0
    assert (work / "link.html").is_symlink() and trials_of(work / "old.html")
    if os.geteuid() == 0:
        os.chown(work / "link.html", 65534, -1, follow_symlinks=False)
        refused = detslurm("report", 1, "-o", work / "link.html")
        assert refused.status == 1 and "another user's link" in refused.err
    missing = detslurm("report", 1, "-o", "nowhere/x.html")
    assert missing.status == 1 and "nowhere/x.html: No such file" in missing.err
    assert not list(work.glob(".*"))


def test_it_opens_in_a_browser_where_there_is_one(
    work: Path, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere it says what to do."""
    opened: list[str] = []

    def opens(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", opens)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert "no browser here" in detslurm("report", 1, "--open").err and not opened
    monkeypatch.setenv("DISPLAY", ":0")
    assert detslurm("report", 1, "--open").status == 0
    assert opened == [(work / "experiment-1.html").as_uri()]
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    assert "no browser here" in detslurm("report", 1, "--open").err


def test_without_plotly_it_says_what_to_install(
    work: Path, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And writes nothing."""
    report._plotly.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly", None)
    done = detslurm("report", 1)
    assert done.status == 1 and "pip install 'detslurm[report]'" in done.err
    assert list(work.iterdir()) == []
