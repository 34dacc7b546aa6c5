"""Stores in which a numbered record was lost: a site's purge took it, or a restore lacked it."""

from __future__ import annotations

import os
import time

import pytest

from detslurm.searcher import Search, State
from detslurm.store import EventLog, StoreError, fold_facts
from detslurm.store.facts import FactLog
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import Scene

UUIDS = [f"0000000{letter}-0000-4000-8000-000000000000" for letter in "abcdef"]


def is_there(scene: Scene, uuid: str) -> bool:
    return (scene.checkpoints / uuid / "weights").exists()


def age(scene: Scene) -> None:
    """Let the checkpoints be two days old."""
    then = time.time() - 2 * 86400
    for checkpoint in scene.checkpoints.iterdir():
        for path in (checkpoint / "weights", checkpoint):
            os.utime(path, (then, then))


@pytest.mark.parametrize("lost", ["a fact before", "the last fact", "the registry's"])
def test_no_checkpoint_of_a_model_is_deleted(scene: Scene, detslurm: Detslurm, lost: str) -> None:
    """With any single record lost `checkpoint delete` and `experiment delete` refuse."""
    made = scene.experiment()
    scene.run(made, losses=[0.25], checkpoint=UUIDS[0], end="completed")
    assert detslurm("model", "create", "digits").status == 0
    assert detslurm("model", "register-version", "digits", UUIDS[0]).status == 0
    assert fold_facts(made).checkpoints.kept.keys() == {3}
    path = {
        "a fact before": made.log.name(2),
        "the last fact": made.log.name(3),
        "the registry's": scene.store.models.log.name(1),
    }[lost]
    path.unlink()
    for words in (("checkpoint", "delete", UUIDS[0]), ("experiment", "delete", 1)):
        done = detslurm(*words, "--yes")
        assert done.status == 1 and is_there(scene, UUIDS[0])
        assert "model digits" in done.err or str(path) in done.err
    assert not path.exists(), "a lost number was given again"
    if lost == "a fact before":
        assert str(path) in detslurm("experiment", "describe", 1).out
        collected = detslurm("gc", "--unrecorded")
        assert str(path) in collected.err and "backup" in collected.err
    if lost == "the registry's":
        changed = detslurm("model", "create", "other")
        assert changed.status == 1 and str(path) in changed.err and not path.exists()


def three_experiments(scene: Scene) -> None:
    for number in range(3):
        made = scene.experiment(trials=2)
        scene.run(made, losses=[0.5], checkpoint=UUIDS[number], end="completed")
        scene.run(made, 1, losses=[0.5], checkpoint=UUIDS[number + 3], end="completed")
    age(scene)


@pytest.mark.parametrize("lost", [(1,), (3,), (1, 2, 3), (5, 6)])
def test_a_ledger_that_lost_facts(scene: Scene, detslurm: Detslurm, lost: tuple[int, ...]) -> None:
    """No experiment vanishes, nothing is deleted, no trial id is given twice; `gc` rebuilds it."""
    three_experiments(scene)
    ledger = scene.store.ledger.log
    whole = ledger.name(lost[0]).read_bytes()
    for path in (*map(ledger.name, lost), *scene.root.glob("*.json")):
        path.unlink()
    given = [n for n in lost if n % 2]  # facts 2, 4 and 6 tell of submitted jobs
    named = {(n + 1) // 2 for n in {*range(1, 7)} - {*lost}}
    listed = detslurm("experiment", "list")
    assert len(listed.out.splitlines()) - 2 == len(named)
    assert lost[-1] == 6 or all(str(ledger.name(n)) in listed.err for n in lost)
    with pytest.raises(StoreError, match=r"[Nn]o trial ids are given"):
        scene.experiment()
    done = detslurm("gc", "--unrecorded")
    assert done.status == 0 and all(is_there(scene, uuid) for uuid in UUIDS)
    assert done.err.count("rebuilt: it gives") == len(given)
    owners = [scene.store.find_trial(trial).experiment_id for trial in range(1, 7)]
    assert owners == [1, 1, 2, 2, 3, 3]
    assert len(lost) > 1 or ledger.name(lost[0]).read_bytes() == whole
    assert len(detslurm("experiment", "list").out.splitlines()) - 2 == 3
    again = detslurm("gc", "--unrecorded")
    assert "rebuilt" not in again.err and all(is_there(scene, uuid) for uuid in UUIDS)
    assert scene.experiment().created().first_trial == 7


def test_a_lost_change_is_rebuilt_as_a_change_of_all(scene: Scene, detslurm: Detslurm) -> None:
    """What a lost `touched` fact named is unknown: every cache reads all experiments again."""
    three_experiments(scene)
    assert detslurm("experiment", "list").status == 0
    assert detslurm("experiment", "label", "add", 2, "kept").status == 0
    touched = scene.store.ledger.log.last_listed()
    assert detslurm("experiment", "label", "add", 3, "kept").status == 0
    scene.store.ledger.log.name(touched).unlink()
    assert detslurm("gc").err.count("read again") == 1
    fact = scene.store.ledger.log.read(touched)
    assert fact is not None and (fact["type"], fact["ids"]) == ("touched", [1, 2, 3])
    assert len(detslurm("experiment", "list").out.splitlines()) - 2 == 3


def test_the_created_fact_is_lost(scene: Scene, detslurm: Detslurm) -> None:
    """The experiment is named, and its checkpoints stay."""
    three_experiments(scene)
    lost = scene.store.experiment(2).log.name(1)
    lost.unlink()
    assert str(lost) in detslurm("experiment", "list").err
    assert str(lost) in detslurm("experiment", "describe", 2).err
    assert str(lost) in detslurm("gc", "--unrecorded").err
    assert all(is_there(scene, uuid) for uuid in UUIDS)


@pytest.mark.parametrize("packed", [False, True])
def test_an_event_of_a_search_is_lost(scene: Scene, detslurm: Detslurm, packed: bool) -> None:
    """Its number is never given again: nothing is decided. From a pack it is rebuilt."""
    experiment, log = scene.search()
    for number in range(20 if packed else 6):
        log.commit([{"e": "work_requested", "worker": f"7_{number}"}])
    state, lost = log.state, FactLog(experiment.search).name(3)
    whole = lost.read_bytes()
    lost.unlink()

    def again() -> EventLog[State]:
        return EventLog(experiment.search, Search(experiment.config()))

    if packed:
        assert again().catch_up() == state
        assert "rebuilt from a pack" in detslurm("gc").err
        assert FactLog(experiment.search).read(3) is not None
        return
    for act in (again().catch_up, lambda: again().commit([{"e": "work_requested"}])):
        with pytest.raises(StoreError, match=r"000003\.json is missing"):
            act()
    assert not lost.exists()
    assert str(lost) in detslurm("experiment", "describe", 1).out
    assert str(lost) in detslurm("gc").err
    assert len(detslurm("experiment", "list").out.splitlines()) - 2 == 1
    assert detslurm("experiment", "kill", 1).status == 0
    lost.write_bytes(whole)
    assert again().catch_up() == state


def test_the_claim_of_a_run_is_lost(scene: Scene, detslurm: Detslurm) -> None:
    """Its number is not claimed again, later runs count, and nothing of the trial is deleted."""
    made = scene.experiment()
    trial = scene.run(made, losses=[0.5], checkpoint=UUIDS[0], end="restart")
    scene.run(made, losses=[0.25], checkpoint=UUIDS[1], end="restart")
    age(scene)
    trial.start_path(1).unlink()
    assert [run.number for run in trial.runs()] == [1, 2]
    assert trial.superseded(1)
    assert str(trial.start_path(1)) in detslurm("experiment", "describe", 1).out
    assert str(trial.start_path(1)) in detslurm("gc", "--unrecorded").err
    assert is_there(scene, UUIDS[0]) and is_there(scene, UUIDS[1])
    (trial.path / "run-999999.start.json").touch()  # no run of this trial
    assert len(trial.runs()) == 2
    trial.start_path(2).unlink()  # the last one: its log is there
    assert trial.open_run({"hparams": {}, "time": 1.0}).run == 3
    assert not trial.start_path(1).exists()


def test_doctor_names_what_is_missing(scene: Scene, detslurm: Detslurm) -> None:
    """Facts of experiments, of the ledger, of the models and of searches."""
    three_experiments(scene)
    made = scene.store.experiment(2)
    lost = [made.log.name(1), scene.store.ledger.log.name(2)]
    assert "missing, although" not in detslurm("doctor").out
    for path in lost:
        path.unlink()
    done = detslurm("doctor")
    assert "2 records missing" in done.out
    assert all(str(path) in " ".join(done.out.split()) for path in lost)
