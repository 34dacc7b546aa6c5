"""What a notebook shows: reprs, HTML, data frames, and names behind Tab."""

from __future__ import annotations

import builtins
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from detslurm import core
from detslurm._base.info import ClusterInfo, TrialInfo
from detslurm.experimental import client
from detslurm.sdk import Experiment, LifecycleError, SubmitError, submit
from detslurm.sdk.jobs.job import Job, JobList
from detslurm.slurm import JobInfo
from detslurm.store import NotFound, RunLog
from tests.sdk.scenes import Scene

EVIL = '<script>alert("x")</script>'


def _scene(scene: Scene) -> None:
    experiment = scene.experiment(2, name=EVIL)
    scene.run(experiment, 0, losses=[0.5, 0.4], checkpoint="c" * 36, end="completed", ref="7_0")
    scene.run(experiment, 1, losses=[0.3], ref="7_1")


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_whole_and_escaped(scene: Scene) -> None:
    """Whatever a name is, it is text."""
    _scene(scene)
    experiment = scene.client.experiment(1)
    for thing in (experiment, experiment.trials()[0], experiment.checkpoints()[0]):
        text = thing._repr_html_()
        tags = _Tags()
        tags.feed(text)
        assert not tags.open and tags.seen == {"p", "b", "ul", "li", "table", "tr", "th", "td"}
    assert "&lt;script&gt;" in experiment._repr_html_()
    rows = experiment._repr_html_().split("<tr>")[2:]
    assert [row.partition("</td>")[0] for row in rows] == ["<td>2", "<td>1"]  # the best first


def test_numbers_and_gaps_are_shown_as_by_the_commands(scene: Scene) -> None:
    """Six digits, and "-" for a value that is missing; constants are no columns."""
    experiment = scene.experiment(3, job=None)
    scene.run(experiment, 0, losses=[1 / 29], checkpoint="c" * 36, hparams={"lr": 1 / 3, "n": None})
    scene.run(experiment, 1, hparams={"lr": {"base": 0.1}, "n": None})
    found = scene.client.experiment(1)
    things: tuple[Any, ...] = (
        found,
        *found.trials(),
        found.checkpoints()[0],
        scene.client.compare([1, 2], trials=True),
    )
    texts = [thing._repr_html_() for thing in things]
    assert all("0.0344828" in text for text in (texts[0], texts[1], texts[4], texts[5]))
    assert "<td>0.333333</td>" in texts[1] and "<td>lr.base</td><td>0.1</td>" in texts[2]
    assert "<th>State</th><th>lr</th><th>lr.base</th><th>Batches</th>" in texts[0]
    assert not [text for text in texts if "None" in text or "0.03448275" in text]


def test_a_log_is_printed_and_still_iterated(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that ends with `trial.logs()` shows the lines, as many as a page can take."""
    scene.run(scene.experiment(), log=["0: one", "0: two", "0: three"], end="completed")
    logs = scene.client.trial(1).logs(tail=2)
    lines = repr(logs).splitlines()
    assert [line.split("|| ")[1] for line in lines] == ["two", "three"]
    assert repr(logs).splitlines() == list(logs) == lines and list(logs) == []
    monkeypatch.setattr("detslurm.sdk.trials.log_lines.LogText._PRINTED", 1)
    assert repr(scene.client.trial(1).logs()).splitlines()[1:] == ["... (iterate to get all lines)"]


def test_reprs_say_which_and_how(scene: Scene) -> None:
    """In a line."""
    _scene(scene)
    experiment = scene.client.experiment(1)
    assert repr(scene.client) == f"Client({str(scene.root)!r})"
    assert repr(experiment) == f"Experiment(id=1, name={EVIL!r}, state='ACTIVE', trials=2)"
    assert repr(experiment.trials()[0]) == "Trial(id=1, experiment=1, state='COMPLETED')"


def test_comparisons_and_jobs_are_shown(scene: Scene) -> None:
    """In a line and as a table."""
    _scene(scene)
    scene.run(scene.experiment(name="net", job="8"), losses=[0.2], ref="8")
    compared = scene.client.compare([1, 2])
    assert repr(compared).startswith("Comparison(ids=(1, 2), results=['trials', 'best trial'")
    assert "<th>Result</th><th>1</th><th>2</th>" in compared._repr_html_()
    assert "They don't differ" in scene.client.compare([1, 1])._repr_html_()
    row = JobInfo(ref="8", name="det-2", comment="net<", state="PENDING", reason="Resources")
    jobs = JobList([Job("slurm", (row,), 2)])
    assert "<td>net&lt;</td>" in jobs._repr_html_()
    assert repr(jobs).startswith("[Job(id='8', name='net<', user=")


IN_A_CELL = """
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.instance().run_cell('''
from detslurm.sdk import submit
submit({"name": "a", "entrypont": "python3 train.py"})
''')
"""


def test_a_wrong_configuration_is_its_own_text_in_a_notebook(tmp_path: Path) -> None:
    """No frames of ours, which stood above and below it."""
    env = {**os.environ, "IPYTHONDIR": str(tmp_path), "DETSLURM_ROOT": str(tmp_path / "store")}
    argv = [sys.executable, "-W", "ignore", "-c", IN_A_CELL]
    shown = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "ConfigErrors: " in shown and """did you mean "entrypoint"?""" in shown, shown
    assert "Traceback" not in shown and len(shown.splitlines()) < 8, shown


def test_core_contexts_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what they know: ids, rank, and what was reported; nothing of how they are made."""
    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path / "store"))
    monkeypatch.setenv("DETSLURM_SITE", "")
    with core.init() as made:
        made.train.report_training_metrics(7, {"loss": 0.5})
        assert repr(made) == "Context(rank=0, size=1, closed=False)"
        trial = TrialInfo(7, 3, 1, {"lr": 0.1}, {}, 0, 1)
        made.info = ClusterInfo("", "", "n1", [], "t", "a", "", "TRIAL", trial_info=trial)
        assert repr(made).startswith("Context(experiment=3, trial=7, hparams={'lr': 0.1}, rank=0")
        assert "<li>trial: 7</li>" in made._repr_html_()
        made.info = None
        assert repr(made.train) == "TrainContext(rank=0, reported={'training': 7})"
        assert repr(made.distributed).startswith("DistributedContext(rank=0, size=1, local_rank=0")
        parts = (made.checkpoint, made.preempt, made.searcher, made.profiler, made.experimental)
        assert not [part for part in parts if " object at " in repr(part)]
        assert all("_repr_html_" in dir(part) for part in parts)


def test_trials_are_a_frame(scene: Scene) -> None:
    """By id, with hyperparameters and results as columns."""
    _scene(scene)
    frame = scene.client.experiment(1).trials_frame()
    assert list(frame.index) == [1, 2]
    assert list(frame["hparams.i"]) == [0, 1] and list(frame["steps"]) == [2, 1]
    assert list(frame["best loss"]) == [0.4, 0.3] and list(frame["latest loss"]) == [0.4, 0.3]
    assert frame.sort_values("best loss").index[0] == 2


def test_metrics_are_a_frame(scene: Scene) -> None:
    """Of all trials, of one, of none."""
    _scene(scene)
    experiment = scene.client.experiment(1)
    frame = experiment.metrics_frame()
    assert frame.to_dict("list") == {
        "trial": [1, 1, 2],
        "steps": [1, 2, 1],
        "loss": [0.5, 0.4, 0.3],
    }
    assert list(experiment.trials()[1].metrics_frame("validation", ["loss"])["loss"]) == [0.3]
    assert list(experiment.metrics_frame("training").columns) == ["trial", "steps"]


MISTYPED: tuple[Callable[[Experiment], Any], ...] = (
    lambda one: one.metrics_frame("valid"),
    lambda one: list(one.iter_metrics("valid")),
    lambda one: one.trials()[0].metrics_frame("valid"),
    lambda one: list(one.trials()[0].iter_metrics("valid")),
    lambda one: list(one.trials()[0].metric_rows("valid")),
    lambda one: one.trials()[0].metrics("valid"),
    lambda one: list(client.iter_trials_metrics([1, 2], "valid")),
)


def test_a_mistyped_group_or_metric_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With those that there are. Before anything was reported nothing is known to be wrong."""
    monkeypatch.setenv("DETSLURM_ROOT", str(scene.root))
    _scene(scene)
    experiment = scene.client.experiment(1)
    for ask in MISTYPED:
        with pytest.raises(ValueError, match="no group of metrics 'valid'; there are validation"):
            ask(experiment)
    trial = experiment.trials()[0]
    assert trial.metrics("training").steps == []  # may yet come
    for ask_names in (experiment.metrics_frame, trial.metrics):
        with pytest.raises(ValueError, match="no metric 'los' in 'validation'; there are loss"):
            ask_names("validation", ["los"])
    with pytest.raises(ValueError, match="no group 'gpus'; it has cpu, memory, disk, network, gpu"):
        trial.profile("gpus")
    scene.run(scene.experiment(job="8"), ref="8")
    assert scene.client.trial(3).metrics("mine").steps == []


def test_names_and_last_go_wherever_ids_do(scene: Scene) -> None:
    """As on the command line."""
    _scene(scene)
    scene.run(scene.experiment(name="net", job="8"), losses=[0.2], checkpoint="d" * 36, ref="8")
    mine = scene.client
    assert [mine.experiment(word).id for word in ("last", "@-2", "net", "1", EVIL)] == [
        2,
        1,
        2,
        1,
        1,
    ]
    assert mine.stored("net").id == mine.directory("last").id == 2
    assert [mine.trial(word).id for word in ("last", "@-2", "1")] == [3, 2, 1]
    assert [one.id for one in mine.list_experiments(experiment_ids=["net"])] == [2]
    assert [one.id for one in mine.disk_usage(["last"])] == [2]
    assert [one.uuid for one in mine.checkpoints(["net"])] == ["d" * 36]
    assert mine.compare(["@-2", "last"]).ids == (1, 2)
    assert mine.compare(["@-2", "last"], trials=True).ids == (2, 3)
    assert mine.gc(["net"], dry_run=True) is not None
    with pytest.raises(NotFound, match="no experiment is called 'nte'"):
        mine.experiment("nte")
    with pytest.raises(LifecycleError, match="may be experiment"):
        mine.experiment("*e*")
    with pytest.raises(ValueError, match="ids are whole numbers from 1"):
        mine.experiment(-1)


def test_a_metric_with_the_name_of_a_column_keeps_both(scene: Scene) -> None:
    """As in a CSV file."""
    trial = scene.run(scene.experiment())
    with RunLog.open(trial.records_path(1)) as log:
        metrics = {"steps": 100, "trial": 7.5, "loss": 0.5}
        log.append({"t": "metrics", "group": "validation", "steps": 3, "metrics": metrics})
    frame = scene.client.trial(1).metrics_frame()
    assert frame.to_dict("list") == {
        "trial": [1],
        "steps": [3],
        "metrics.steps": [100],
        "metrics.trial": [7.5],
        "loss": [0.5],
    }


def test_without_pandas_the_error_says_so(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what to do."""
    _scene(scene)
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        scene.client.experiment(1).trials_frame()


def test_the_best_checkpoint_is_loaded(scene: Scene) -> None:
    """By a function that gets its directory."""
    _scene(scene)
    best = scene.client.experiment(1).best_checkpoint
    assert best.path is not None and best.trial_id == 1
    assert best.load(lambda path: (path / "weights").read_text()) == "12345"
    with pytest.raises(LifecycleError, match="not a PyTorchTrial's"):
        best.load()


def test_a_checkpoint_has_determined_s_names(scene: Scene) -> None:
    """Its state is text and a member, and its metrics are those of its step."""
    _scene(scene)
    (found,) = client.Determined(root=scene.root).get_checkpoint("c" * 36).get_metrics("validation")
    assert (found.steps_completed, found.metrics, found.trial_id) == (2, {"loss": 0.4}, 1)
    checkpoint = scene.client.checkpoint("cccc")
    assert checkpoint.state is client.CheckpointState.COMPLETED and checkpoint.state == "COMPLETED"
    assert repr(checkpoint).endswith("steps=2, state='COMPLETED')")


def test_one_checkpoint_is_selected(scene: Scene) -> None:
    """By Determined's older names, which say the newer ones."""
    _scene(scene)
    trial = scene.client.trial(1)
    with pytest.warns(FutureWarning, match="top_checkpoint"):
        assert trial.select_checkpoint(best=True).uuid == "c" * 36
    with pytest.warns(FutureWarning), pytest.raises(ValueError, match="exactly one"):
        trial.select_checkpoint(best=True, latest=True)
    with pytest.warns(FutureWarning, match="list_checkpoints"):
        assert [one.uuid for one in trial.get_checkpoints()] == ["c" * 36]


LAZY = (
    *("detslurm", "detslurm.sdk", "detslurm.store", "detslurm.config", "detslurm.slurm"),
    *("detslurm.experimental", "detslurm.experimental.client", "detslurm.pytorch"),
    "detslurm.pytorch.deepspeed",
)


@pytest.mark.parametrize("name", LAZY)
def test_tab_shows_the_api(name: str) -> None:
    """What is loaded on first use, too."""
    module = importlib.import_module(name)
    assert set(getattr(module, "__all__", ())) <= set(dir(module))
    assert not [one for one in dir(module) if one == "annotations"]


def test_a_directory_needs_a_configuration(tmp_path: Path, scene: Scene) -> None:
    """Nothing is guessed."""
    with pytest.raises(SubmitError, match=r"experiment\.yaml"):
        submit(tmp_path, client=scene.client)
