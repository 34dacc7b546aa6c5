"""Samples by Optuna for the runner: from a short-lived process, into the log of the search."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from detslurm.exec.intents import Intents
from detslurm.exec.sampling import SamplingError, sample
from detslurm.exec.search_worker import SearchTrialQueue
from detslurm.searcher import Search, State
from detslurm.store import EventLog, fold_experiment
from tests.sdk.scenes import Scene

SPACE = {"x": {"type": "double", "minval": 0, "maxval": 1}}


def search(**searcher: Any) -> Search:
    return Search.from_config(
        {
            "searcher": {"name": "optuna", "metric": "loss", "max_trials": 4, **searcher},
            "hyperparameters": SPACE,
            "reproducibility": {"experiment_seed": 7},
        }
    )


def asked(path: Path, search: Search, worker: str) -> EventLog[State]:
    """A worker's view of the log, with a trial assigned to it."""
    log = EventLog(path, search)
    log.commit([{"e": "work_requested", "worker": worker}])
    return log


def test_a_sample_is_drawn_once_for_all(tmp_path: Path) -> None:
    """Whoever needs it first draws it for all that lack one; others read it; it survives."""
    first = asked(tmp_path, search(), "a")
    second = asked(tmp_path, search(), "b")
    first.catch_up()
    mine, theirs = sample(first, search(), 0), sample(second, search(), 1)
    assert set(mine) == set(theirs) == {"x"}
    assert mine != theirs
    later = EventLog(tmp_path, search())
    later.catch_up()
    assert [sample(later, search(), i) for i in (0, 1)] == [mine, theirs]


def test_the_loser_of_a_race_takes_what_is_there(tmp_path: Path) -> None:
    """Both drew for the same trial: they end up with the same sample."""
    log = asked(tmp_path, search(), "a")
    stale = EventLog(tmp_path, search())
    stale.catch_up()
    assert sample(log, search(), 0) == sample(stale, search(), 0)


def test_what_optuna_refuses_is_said(tmp_path: Path) -> None:
    """The reason comes back from the process as an error with its words."""
    wrong = search(sampler_args={"startup": 3})
    with pytest.raises(SamplingError, match=r"sampler_args.*startup"):
        sample(asked(tmp_path, wrong, "a"), wrong, 0)


def test_the_caller_never_imports_optuna(tmp_path: Path) -> None:
    """A runner that samples stays light, and a random.py beside it is not in the way."""
    (tmp_path / "random.py").write_text("raise RuntimeError('not this one')")
    code = f"""
import sys; sys.path[:] = [p for p in sys.path if p]
from pathlib import Path
from tests.exec.test_sampling import asked, sample, search
place = Path({str(tmp_path)!r}) / "log"; place.mkdir()
print(sample(asked(place, search(), "a"), search(), 0), "optuna" in sys.modules)
"""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(root)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("{'x': 0.")
    assert done.stdout.endswith("False\n")


CONFIG = """\
name: test
entrypoint: python3 train.py
searcher: {name: optuna, metric: loss, max_trials: 2, sampler_args: {startup: 3}}
hyperparameters: {x: {type: double, minval: 0, maxval: 1}}
slurm: {slot_type: cpu}
"""


def test_trials_without_a_sample_fail(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A worker says why and ends the trials, and with them the search; it doesn't die itself."""
    scene = Scene(tmp_path / "store")
    experiment, _ = scene.search(CONFIG, trials=2)
    scene.queue.put("7_0", "RUNNING")
    intents = Intents(experiment)
    intents.refresh()
    trial_queue = SearchTrialQueue(intents, experiment.config(), ref="7_0", cluster=scene.queue)
    assert trial_queue.has_work()
    assert trial_queue.take() is None
    assert not trial_queue.has_work()
    assert "has no sample: searcher.sampler_args" in capfd.readouterr().out
    view = fold_experiment(experiment)
    assert view.state == "ERROR"
    assert [trial.state for trial in view.trials] == ["ERROR", "ERROR"]
