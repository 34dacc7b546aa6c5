"""The garbage collection of an experiment's own workers: when, what of, and that it harms none."""

from __future__ import annotations

import time

import pytest

from detslurm.exec.gc import PASSES, CheckpointCollection
from detslurm.store import ExperimentDir
from tests.cluster.waiting import wait_for
from tests.sdk.scenes import SEARCH, Scene
from tests.store import collecting
from tests.store.collecting import on_disk, run


def collection(made: ExperimentDir, interval: float = 600.0) -> CheckpointCollection:
    """A worker's, that has just begun."""
    return CheckpointCollection(made, made.run_config(), interval)


def test_now_and_then_while_a_trial_runs(scene: Scene) -> None:
    """What it leaves behind goes before it ends; what it may go on from stays."""
    made = collecting.experiment(scene, trial_best=1, latest=0)
    run(scene, made, 0, [("a", 1, 0.1), ("b", 2, 0.5), ("c", 3, None)], end=None)
    with collection(made, interval=0.02).watching(made.created().first_trial, 1):
        wait_for(lambda: on_disk(scene) == {"a", "c"}, 120.0, "a collection")


def test_many_trials_side_by_side_collect_less_often(scene: Scene) -> None:
    """Each collection is a fact that everybody reads."""
    made = collecting.experiment(scene, trial_best=0)
    run(scene, made, 0, [("a", 1, None), ("b", 2, None)], end=None)
    with collection(made, interval=0.02).watching(made.created().first_trial, 8000):
        time.sleep(0.3)
        assert on_disk(scene) == {"a", "b"}


def test_the_end_of_a_trial_of_few(scene: Scene) -> None:
    """Its own go; those of others too where the best of all are ranked."""
    made = collecting.experiment(scene, trials=2, trial_best=0)
    for index in range(2):
        run(scene, made, index, [(f"{index}a", 1, None), (f"{index}b", 2, None)])
    first = made.created().first_trial
    collection(made).after_trial(0, first, 2, is_last=False)
    assert on_disk(scene) == {"0b", "1a", "1b"}
    collection(made).after_trial(1, first + 1, 2, is_last=True)
    assert on_disk(scene) == {"0b", "1b"}


def test_the_end_of_a_trial_of_many(scene: Scene) -> None:
    """One in so many looks at all of them, the others at none."""
    made = collecting.experiment(scene, trials=2, trial_best=0)
    for index in range(2):
        run(scene, made, index, [(f"{index}a", 1, None), (f"{index}b", 2, None)])
    first = made.created().first_trial
    collection(made).after_trial(1, first + 1, 2 * PASSES, is_last=False)
    assert len(on_disk(scene)) == 4
    collection(made).after_trial(2, first + 1, 2 * PASSES, is_last=False)
    assert on_disk(scene) == {"0b", "1b"}


def test_what_a_search_may_start_from_stays(scene: Scene) -> None:
    """A worker asks the search's log, which other workers write."""
    made, log = scene.search(SEARCH)
    scene.set_policy(made, collecting.policy(trial_best=0, latest=0))
    log.commit([{"e": "work_requested", "worker": "7_0"}])
    run(scene, made, 0, [("a", 1, None), ("b", 2, None)], end="out_of_ops")
    log.commit(
        [{"e": "run_ended", "trial": 0, "worker": "7_0", "outcome": "released",
          "fencing_token": 1, "checkpoint": "a"}]
    )  # fmt: skip
    assert log.state.needed_checkpoints() == {"a"}
    collection(made).after_trial(0, made.created().first_trial, 1, is_last=True)
    assert on_disk(scene) == {"a", "b"}


def test_a_worker_that_can_not_collect_goes_on(
    scene: Scene, capfd: pytest.CaptureFixture[str]
) -> None:
    """The reason is in the job's output."""
    made = collecting.experiment(scene, trial_best=0)
    run(scene, made, 0, [("a", 1, None), ("b", 2, None)])
    unread = ExperimentDir(made.store, made.id)
    collector = CheckpointCollection(unread, made.run_config())
    (made.path / "config.json").unlink()
    collector.after_trial(0, made.created().first_trial, 1, is_last=True)
    assert "checkpoints are not collected" in capfd.readouterr().out
    assert on_disk(scene) == {"a", "b"}
