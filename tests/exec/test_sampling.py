"""Samples by Optuna for the runner: from a short-lived process, into the log of the search."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from detslurm.exec.intents import Intents
from detslurm.exec.sampling import Question, SamplingError, answer, sample
from detslurm.exec.search_worker import SearchTrialQueue
from detslurm.searcher import Search, State
from detslurm.searcher.optuna.history import TrialHistory
from detslurm.store import EventLog, ExperimentDir, fold_experiment
from tests.sdk.scenes import Scene

SPACE = {"x": {"type": "double", "minval": 0, "maxval": 1}}


def search(**searcher: Any) -> Search:
    return Search(
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


def test_another_version_of_optuna_is_reported_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The log records which version drew each sample; a change is a warning, not an end."""
    made = search()
    log = asked(tmp_path, made, "a")
    sample(log, made, 0)
    now = log.state.optuna
    assert now is not None and "Optuna" not in capfd.readouterr().out
    log.commit([{"e": "sampled", "trial": 0, "hparams": {"x": 0.5}, "optuna": "3.9.0"}])
    for index, worker in ((1, "b"), (2, "c")):
        log.commit([{"e": "work_requested", "worker": worker}])
        assert sample(log, made, index)
    told = capfd.readouterr().out
    assert told.count(f"Optuna {now} draws samples now; it was Optuna 3.9.0 before.") == 1
    assert "install optuna==3.9.0" in told and log.state.optuna == now


def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    """Samplers run `before` in a shell first."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\n{before}\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr("time.sleep", lambda _: None)


def test_a_sampler_that_is_killed_once_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """For want of memory, say."""
    seen = tmp_path / "seen"
    python(tmp_path, monkeypatch, f"[ -e {seen} ] || {{ touch {seen}; kill -KILL $$; }}")
    assert set(sample(asked(tmp_path, search(), "a"), search(), 0)) == {"x"}
    assert "the sampler was killed by SIGKILL (out of memory?)" in capfd.readouterr().out


def test_the_signals_of_a_job_that_ends_reach_no_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Slurm may send them to all its processes; what follows is the worker's to decide."""
    python(tmp_path, monkeypatch, "kill -TERM $$; kill -USR1 $$")
    assert set(sample(asked(tmp_path, search(), "a"), search(), 0)) == {"x"}
    assert capfd.readouterr().out == ""


def test_a_package_that_is_missing_may_be_back_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file system has a hiccup: `submit` has seen it."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    found = answer(Question(dict(search().searcher), SPACE, 7, TrialHistory(), [0]))
    assert found.missing and "needs Optuna" in str(found.error)
    monkeypatch.undo()
    wrong = search(sampler_args={"startup": 3})
    found = answer(Question(dict(wrong.searcher), SPACE, 7, TrialHistory(), [0]))
    assert found.error is not None and not found.missing


def test_what_will_fail_later_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that Optuna imports after the first trials only."""
    monkeypatch.setattr("detslurm.searcher.optuna.bridge.find_spec", lambda name: None)
    asks = search(sampler="cmaes")
    found = answer(Question(dict(asks.searcher), SPACE, 7, TrialHistory(), [0]))
    assert found.error == "Optuna's cmaes lacks a package: pip install cmaes"
    assert not found.missing


def test_what_fails_in_optuna_is_no_fault_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fail anywhere: the trial ends, with the reason."""
    import optuna

    def fail(*_: object, **__: object) -> None:
        raise ValueError("n_ei_candidates is 0")

    monkeypatch.setattr(optuna.study.Study, "ask", fail)
    found = answer(Question(dict(search().searcher), SPACE, 7, TrialHistory(), [0]))
    assert found.error == "Optuna failed: ValueError: n_ei_candidates is 0" and not found.missing


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


def trial_queue_of(scene: Scene, experiment: ExperimentDir) -> SearchTrialQueue:
    scene.queue.put("7_0", "RUNNING")
    intents = Intents(experiment)
    intents.refresh()
    return SearchTrialQueue(intents, experiment.run_config(), ref="7_0", cluster=scene.queue)


def test_trials_without_a_sample_fail(scene: Scene, capfd: pytest.CaptureFixture[str]) -> None:
    """A worker says why and ends the trials, and with them the search; it doesn't die itself."""
    experiment, _ = scene.search(CONFIG, trials=2)
    trial_queue = trial_queue_of(scene, experiment)
    assert trial_queue.has_work()
    assert trial_queue.take() is None
    assert not trial_queue.has_work()
    assert "has no sample: searcher.sampler_args" in capfd.readouterr().out
    view = fold_experiment(experiment)
    assert view.state == "ERROR"
    assert [trial.state for trial in view.trials] == ["ERROR", "ERROR"]


def test_a_node_without_a_sampler_ends_no_trial(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker ends, and another one has the trial."""
    experiment, log = scene.search(CONFIG.replace(", sampler_args: {startup: 3}", ""), trials=2)
    trial_queue = trial_queue_of(scene, experiment)
    assert trial_queue.has_work()
    with monkeypatch.context() as patch:
        python(tmp_path, patch, "kill -KILL $$")
        with pytest.raises(SystemExit, match="the sampler was killed by SIGKILL"):
            trial_queue.take()
        patch.setattr(sys, "executable", str(tmp_path / "nothing"))
        with pytest.raises(SystemExit, match="no sampler can be started"):
            trial_queue.take()
    assert log.catch_up().trials[0].status == "assigned"
    task = trial_queue_of(scene, experiment).take()
    assert task is not None and set(task.plan.hparams) == {"x"}
