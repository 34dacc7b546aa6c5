"""Snapshots of experiments that the command line submitted and the embedded cluster ran."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from detslurm.look.document import ExperimentPart
from detslurm.look.snapshot import encode, snapshot
from detslurm.sdk import Client
from detslurm.slurm import LocalCluster
from tests.e2e.test_search import ASHA, LEARNS
from tests.look.browser import Browser
from tests.slurm.schedulers import end_scheduler

GRID = """\
    searcher: {name: grid, metric: loss, max_length: {batches: 40}}
    hyperparameters: {x: {type: categorical, vals: [1, 0]}, api_key: hush-hush}
    environment: {environment_variables: [TRACKER=hush-hush, DB_PASS=hush-hush]}
    max_restarts: 1
    profiling: {enabled: true}
    data: {secrets: {token: hush-hush}, password: hush-hush}
    """

# Nothing of it may run.
DRAWING = """\
    <svg xmlns="http://www.w3.org/2000/svg" width="20" height="10" onload="parent.harm = 1">
    <script>window.top.harm = 1; fetch("http://127.0.0.1:9/")</script>
    <image href="http://127.0.0.1:9/x.png"/><rect width="20" height="10" fill="red"/></svg>
    """

# The trial with x = 0 saves, fails, goes on from there, and fails again.
DIVIDES = """\
    import detslurm as det

    info = det.get_cluster_info()
    x = info.trial.hparams["x"]
    assert info.trial.hparams["api_key"] == "hush-hush"
    password = "hush-hush"
    with det.core.init() as core:
        begin = 20 if info.latest_checkpoint else 0
        for step in range(begin + 1, 41):
            core.train.report_training_metrics(step, {"loss": 1 / step})
            core.train.report_artifact("sample", step, [[0.0, step / 40]], kind="image")
            if step == 20:
                core.train.report_artifact("svg", step, "drawing.svg")
                core.train.report_artifact("table", step, [{"text": password, "<b>": step}])
                core.train.report_artifact("weights", step, [0.0, 1.0, 1.0], kind="histogram")
                matrix = [[3, 1], [0, 4]]
                core.train.report_artifact("confusion", step, matrix, kind="confusion_matrix")
            if step == 20:
                core.train.report_validation_metrics(step, {"loss": 0.5})
                with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    (path / "step").write_text("20")
            if step == 30:
                print("the token is hush-hush", flush=True)
                print(1 / x)
    """


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store with a grid whose second trial fails, and a search, both over."""
    folder = tmp_path_factory.mktemp("look")
    store = folder / "store"
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder),
           "DETSLURM_ROOT": str(store), "DETSLURM_SITE": os.devnull}  # fmt: skip

    def detslurm(*words: str) -> None:
        command = [sys.executable, "-m", "detslurm", *words]
        subprocess.run(command, env=env, cwd=folder, check=False, timeout=300)

    try:
        for name, script, config in (("grid", DIVIDES, GRID), ("asha", LEARNS, ASHA)):
            (folder / name).mkdir()
            (folder / name / "train.py").write_text(textwrap.dedent(script))
            (folder / name / "drawing.svg").write_text(textwrap.dedent(DRAWING))
            base = f"name: {name}\nentrypoint: python3 train.py\nslurm: {{slot_type: cpu}}\n"
            (folder / name / "experiment.yaml").write_text(base + textwrap.dedent(config))
            detslurm("submit", f"{name}/experiment.yaml", "--cluster", "local")
        for number in "12":
            detslurm("experiment", "wait", number)
        yield store
    finally:
        end_scheduler(LocalCluster(store))


def taken(root: Path, number: int) -> ExperimentPart:
    """The snapshot of one of them."""
    made = snapshot([Client(root).experiment(number)], code=True)
    assert len(encode(made)) < 200_000
    return made.experiments[0]


def test_a_grid_and_its_failure(root: Path) -> None:
    """Curves, runs with waits and a restart, checkpoints, log tail without the secret, profile."""
    part = taken(root, 1)
    assert (part.name, part.state, part.searcher) == ("grid", "COMPLETED", "grid")
    assert part.unit == "batches"
    assert part.problems == []
    assert "train.py" in part.code
    failed, fine = sorted(part.trials, key=lambda trial: str(trial.hparams["x"]))
    assert (fine.state, failed.state) == ("COMPLETED", "ERROR")
    assert (fine.hparams["x"], failed.hparams["x"]) == (1, 0)
    curves = {f"{c.group}/{c.metric}": c for c in failed.curves}
    assert curves["training/loss"].steps == list(range(1, 31))
    assert len(curves["training/loss"].times) == 30
    assert (failed.best, failed.best_steps, failed.restarts) == (0.5, 20, 1)
    first, second = failed.runs
    assert (first.outcome, second.outcome, second.resumed_steps) == ("restart", "error", 20)
    assert first.queued is not None and first.started is not None
    assert first.queued <= first.started
    assert second.queued is None  # it began in the same allocation
    assert first.nodes and first.job
    (saved, *_) = failed.checkpoints
    assert saved.path is not None and Path(saved.path, "step").read_text() == "20"
    text = "\n".join(failed.log_tail)
    assert "ZeroDivisionError" in text and "hush-hush" not in text
    assert fine.log_tail == []
    assert failed.efficiency["steps_lost"] == 10
    artifacts = {one.name: one for one in failed.artifacts}
    assert sorted(artifacts) == ["confusion", "sample", "svg", "table", "weights"]
    assert (artifacts["sample"].steps[0], artifacts["sample"].steps[-1]) == (1, 30)
    assert b"hush" not in base64.b64decode(artifacts["table"].data[0])
    lines = Client(root).trial(failed.id).directory.log_path(1).read_text()
    assert "detslurm: step 1: loss 1" in lines and "detslurm: step 30: loss" in lines
    assert {curve.group for curve in fine.profile} <= {"cpu", "memory", "disk", "network", "gpu"}


def test_no_front_door_shows_a_secret(root: Path, tmp_path: Path) -> None:
    """Neither output for people or scripts, nor records, nor a file that leaves the store."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DETSLURM_ROOT": str(root)}
    commands = (
        "experiment describe 1 --json", "trial describe 1 --json", "experiment config 1",
        "experiment export 1 --to csv -o tables", "experiment bundle 1 -o all.tar",
        "trial support-bundle 2 -o help.tar",
    )  # fmt: skip
    for line in commands:
        words = [sys.executable, "-m", "detslurm", *line.split()]
        done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, timeout=300)
        assert done.returncode == 0 and b"hush-hush" not in done.stdout, line
    for path in [*tmp_path.glob("tables/**/*"), *root.glob("experiments/1/trials/**/*.json")]:
        assert path.is_dir() or b"hush-hush" not in path.read_bytes(), path
    for name in ("all.tar", "help.tar"):
        with tarfile.open(tmp_path / name) as archive:
            for member in archive.getmembers():
                # Of a whole experiment the code and its output stay as they are.
                if not member.name.startswith(("code/", "trials/")):
                    file = archive.extractfile(member)
                    assert file is not None and b"hush-hush" not in file.read(), member.name


def test_a_search_and_its_rungs(root: Path) -> None:
    """Rungs with their best, and how far each trial came."""
    part = taken(root, 2)
    assert (part.state, part.problems, part.unit) == ("COMPLETED", [], "batches")
    assert [(rung.bracket, rung.units) for rung in part.rungs] == [(0, 3), (0, 9)]
    low, high = part.rungs
    assert (low.trials, low.outstanding, high.outstanding) == (8, 0, 0)
    reached = [trial.rung for trial in part.trials]
    assert sorted(filter(None, reached)) == [1] * high.trials
    assert set(reached) == {0, 1}
    best = min(part.trials, key=lambda trial: (trial.best is None, trial.best))
    assert high.best_trial == best.id
    assert best.rung == 1


def test_a_report_of_both(root: Path, tmp_path: Path, chromium: Browser) -> None:
    """From the command to the page in a browser: what failed, how, and how to go on from there."""
    pytest.importorskip("plotly")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DETSLURM_ROOT": str(root)}
    target = tmp_path / "both.html"
    words = [sys.executable, "-m", "detslurm", "report", "1", "2", "-o", str(target)]
    subprocess.run(words, env=env, cwd=tmp_path, check=True, timeout=300)
    assert "hush-hush" not in target.read_text() and "********" in target.read_text()
    chromium.requests.clear()
    chromium.open(target.as_uri())
    chromium.wait_for("document.querySelectorAll('[data-trial]').length > 8")
    failed = "[...document.querySelectorAll('[data-trial]')].find(r => /ERROR/.test(r.textContent))"
    chromium.js(f"{failed}.querySelector('a').click()")
    chromium.wait_for("!document.querySelector('#trial').hidden")
    text = chromium.js("return document.querySelector('#trial').textContent")
    assert "ZeroDivisionError" in text and "detslurm checkpoint download" in text
    chromium.wait_for("document.querySelector('#trial .part-metrics svg')")
    chromium.wait_for("document.querySelectorAll('.artifact img').length === 2")
    chromium.wait_for("[...document.querySelectorAll('.artifact img')].every(i => i.naturalWidth)")
    chromium.wait_for("document.querySelectorAll('.histogram i').length === 30")
    shown = chromium.js("return document.querySelector('.artifacts').innerText")
    assert "batch 30" in shown and "<b>" in shown and "true, then predicted" in shown
    slider = "document.querySelector('[aria-label=\"step of sample\"]')"
    chromium.js(f"{slider}.value = 0; {slider}.dispatchEvent(new Event('input'))")
    chromium.wait_for("/sample\\s+batch 1\\b/.test(document.querySelector('.artifacts').innerText)")
    assert chromium.js("return window.harm ?? null") is None
    chromium.type("\ue00c")
    chromium.js("document.querySelector('#rungs').scrollIntoView()")
    chromium.wait_for("document.querySelectorAll('#rungs tbody tr').length === 2")
    assert [one for one in chromium.requests if not one.startswith(("file:", "data:"))] == []
