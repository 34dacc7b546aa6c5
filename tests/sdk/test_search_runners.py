"""A runner finds what it has submitted, however many experiments there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.sdk.errors import LifecycleError, SubmitError
from detslurm.sdk.experiments.resubmission import submit_workers
from detslurm.sdk.searches.runners import LocalSearchRunner, SubmissionMark, _find_marked
from detslurm.slurm import JobRequest, SlurmError
from detslurm.store import ExperimentDir, Store
from detslurm.store.records import Created, SearchEnded
from tests.sdk.methods import RandomSearch
from tests.sdk.scenes import CUSTOM, Scene

SEARCHED = {
    "name": "searched",
    "entrypoint": "python3 train.py",
    "searcher": {"name": "custom", "metric": "loss", "unit": "batches"},
    "slurm": {"slot_type": "cpu"},
}


def test_only_later_experiments_are_looked_at(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark is younger than all that was there when it was made."""
    for _ in range(3):
        scene.experiment()
    runner = LocalSearchRunner(RandomSearch(1, 1), tmp_path / "kept")
    mark = runner._mark(scene.store)
    assert mark.after == 3
    assert runner._mark(scene.store) == mark, "it is made once"
    seen: list[int] = []
    real = Store.experiment

    def experiment(self: Store, number: int) -> ExperimentDir:
        seen.append(number)
        return real(self, number)

    monkeypatch.setattr(Store, "experiment", experiment)
    assert _find_marked(scene.store, mark) is None
    assert seen == []
    own = scene.experiment(about={"runner": mark.text})
    scene.experiment(about={"runner": "another"})
    found = _find_marked(scene.store, mark)
    assert found is not None and found.id == own.id
    assert _find_marked(scene.store, SubmissionMark("another", own.id)) is not None
    own.append({"type": "intent", "intent": "delete"})
    assert _find_marked(scene.store, mark) is None


def test_a_runner_asks_the_cluster_before_it_submits(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `detslurm submit` does: what the cluster would refuse creates no experiment."""
    monkeypatch.setenv("DETSLURM_ROOT", str(scene.root))
    monkeypatch.setenv("DETSLURM_SITE", "")
    queue = scene.queue
    monkeypatch.setattr("detslurm.slurm.detect.detect_cluster", lambda name, root=None: queue)

    def refused(request: JobRequest) -> None:
        raise SlurmError("no such account")

    monkeypatch.setattr(queue, "check", refused)
    (tmp_path / "train.py").touch()
    runner = LocalSearchRunner(RandomSearch(1, 1), tmp_path / "kept")
    with pytest.raises(SubmitError, match="no such account"):
        runner.run(SEARCHED, str(tmp_path))
    monkeypatch.setattr(queue, "check", lambda request: None)
    other = {**SEARCHED, "searcher": {"name": "random", "metric": "loss", "max_trials": 2}}
    with pytest.raises(SubmitError, match="a search runner needs `custom`, not 'random'"):
        runner.run(other, str(tmp_path))
    assert scene.client.rows() == [] == queue.requests


def test_what_a_killed_runner_has_begun_can_have_workers(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as the next runner finds the experiment by its mark, it can queue jobs of it."""
    monkeypatch.setattr("detslurm.slurm.detect.detect_cluster", lambda name, root=None: scene.queue)
    (tmp_path / "train.py").touch()
    real = ExperimentDir.create

    def killed(self: ExperimentDir, record: Created) -> bool:
        real(self, record)
        raise KeyboardInterrupt

    monkeypatch.setattr(ExperimentDir, "create", killed)
    with pytest.raises(KeyboardInterrupt):
        scene.client.submit(SEARCHED, tmp_path, method_runner="mark")
    found = _find_marked(scene.store, SubmissionMark("mark", 0))
    assert found is not None
    assert submit_workers(found, 2, scene.queue, read=0)
    [request] = scene.queue.requests
    assert (request.name, request.count) == (f"det-{found.id}", 2)


def test_the_client_submits(scene: Scene, tmp_path: Path) -> None:
    """A configuration in Python, with the code beside it and all that is in the client's store: its
    templates, and the checkpoints to come. A custom search needs its runner."""
    (tmp_path / "train.py").touch()
    config = {
        "name": "from-python",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
        "slurm": {"slot_type": "cpu"},
    }
    templates = scene.root / "templates"
    templates.mkdir(parents=True)
    scene.root.chmod(0o700)
    (templates / "big.yaml").write_text("max_restarts: 7\n")
    done = scene.client.submit(
        config, tmp_path, overrides=["name=renamed"], template="big", paused=True
    )
    assert repr(done) == "Experiment(id=1, name='renamed', state='PAUSED', trials=1)"
    experiment = scene.client.experiment("renamed")
    with pytest.raises(LifecycleError, match="a submission returns"):
        _ = experiment.submission
    storage = experiment.config["checkpoint_storage"]
    assert (storage["host_path"], experiment.config["max_restarts"]) == (str(scene.root), 7)
    assert (experiment.name, experiment.state) == ("renamed", "PAUSED")
    assert [job.job_id for job in experiment.view.jobs] == list(done.submission.job_ids)
    with pytest.raises(SubmitError, match="LocalSearchRunner"):
        scene.client.submit({**config, "searcher": {"name": "custom", "metric": "loss"}}, tmp_path)


def test_a_search_that_is_over_is_said_to_be(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Started again in the same directory nothing would run, whatever the new configuration."""
    monkeypatch.setenv("DETSLURM_ROOT", str(scene.root))
    experiment, _ = scene.search(CUSTOM, workers=0)
    experiment.append(SearchEnded(created=0, closed={}, verdict="completed"))
    experiment.append({"type": "intent", "intent": "cancel"})
    (tmp_path / f"exp_{experiment.id}").mkdir()
    assert LocalSearchRunner(RandomSearch(1, 1), tmp_path).run(SEARCHED) == experiment.id
    assert f"the search of experiment {experiment.id} is over" in caplog.text
