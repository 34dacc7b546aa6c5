"""Collecting checkpoints: exactly what the policy lets go, whoever runs, races or is killed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from detslurm.searcher.state import Dialogue, SearchTrial, State
from detslurm.storage import SharedFS
from detslurm.store import ExperimentDir, RunLog, fold_facts, fold_trial
from detslurm.store.checkpoint_facts import keep, mark_deleted, mark_files_removed
from detslurm.store.gc import Collector, remove
from detslurm.store.records import Found, Intent, Lost
from tests.sdk.scenes import Scene
from tests.store import collecting
from tests.store.collecting import collect, files, on_disk, run, storage
from tests.store.faults import deaths, killed_at
from tests.store.scenes import metrics


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """An empty store."""
    return Scene(tmp_path / "store")


def listed(made: ExperimentDir, index: int = 0) -> dict[str, str]:
    """The state of each checkpoint of a trial, as everybody reads it."""
    number = made.created().first_trial + index
    view = fold_trial(made.trial(number), fold_facts(made).context(number))
    return {checkpoint.uuid: checkpoint.state for checkpoint in view.checkpoints}


def test_what_the_policy_keeps_stays_and_all_else_goes(scene: Scene) -> None:
    """Records and files agree afterwards, what was freed is known, and again does nothing."""
    made = collecting.experiment(scene, trials=2, best=1, trial_best=1, latest=1)
    run(scene, made, 0, [("a", 1, 0.9), ("b", 2, 0.4), ("c", 3, 0.8), ("d", 4, 0.7)])
    run(scene, made, 1, [("e", 1, 0.3), ("f", 2, None), ("g", 3, 0.6)])
    done = collect(scene, made)
    assert [one.uuid for one in done.deleted] == ["a", "c", "f"]
    assert (done.freed, done.problems, done.kept) == (15, (), {})
    assert on_disk(scene) == {"b", "d", "e", "g"}
    assert listed(made) == {"a": "DELETED", "b": "COMPLETED", "c": "DELETED", "d": "COMPLETED"}
    before = fold_facts(made).count
    assert collect(scene, made).deleted == ()
    assert fold_facts(made).count == before


def test_a_trial_that_may_go_on_keeps_what_it_would_go_on_from(scene: Scene) -> None:
    """Even where the policy keeps none: its latest, and what a run that goes on began with."""
    made = collecting.experiment(scene, trials=3, trial_best=0, latest=0)
    run(scene, made, 0, [("a", 1, 0.1), ("b", 2, 0.2)], end=None)
    run(scene, made, 1, [("c", 1, 0.1), ("d", 2, 0.1)], end="preempted")
    run(scene, made, 1, [("e", 3, None), ("f", 4, None)], end=None, resume="d")
    run(scene, made, 2, [("g", 1, 0.1), ("h", 2, None)], end="out_of_ops")
    collect(scene, made)
    assert on_disk(scene) == {"b", "d", "f", "h"}
    for index in range(2):
        trial = made.trial(made.created().first_trial + index)
        trial.write_end(len(trial.runs()), {"outcome": "completed"})
    run(scene, made, 2, [], end="completed", resume="h")
    collect(scene, made)
    assert on_disk(scene) == set()


def test_one_trial_alone_leaves_what_might_be_the_best_of_all(scene: Scene) -> None:
    """A worker that reads its own trial only deletes nothing that all trials together keep."""
    made = collecting.experiment(scene, trials=2, best=2, trial_best=1, latest=1)
    run(scene, made, 0, [("a", 1, 0.1), ("b", 2, 0.2), ("c", 3, 0.3), ("d", 4, 0.4)])
    run(scene, made, 1, [("e", 1, 0.05), ("f", 2, None)], end=None)
    first = made.created().first_trial
    collect(scene, made, trial=first)
    assert on_disk(scene) == {"a", "b", "d", "e", "f"}
    collect(scene, made)
    assert on_disk(scene) == {"a", "d", "e", "f"}


def test_what_others_need_is_kept(scene: Scene) -> None:
    """A registered checkpoint, the source of another experiment, what a search may copy."""
    made = collecting.experiment(scene, trial_best=0, latest=0)
    run(scene, made, 0, [("a", 1, 0.1), ("b", 2, 0.2), ("c", 3, 0.3)])
    keep(made, ["a"], by="model resnet version 3")
    Collector(made, files(scene), lambda: {"b"}).collect()
    assert on_disk(scene) == {"a", "b"}


def test_a_search_names_what_it_may_start_trials_from() -> None:
    """What a trial left that waits or is copied; of ended trials only if a custom method asks."""
    state = State(
        trials=[
            SearchTrial(status="paused", checkpoint="a"),
            SearchTrial(status="closed", checkpoint="b"),
            SearchTrial(status="assigned", source=0, source_checkpoint="c"),
            SearchTrial(status="waiting", source=1),
            SearchTrial(status="closed", checkpoint="d", source_checkpoint="e"),
        ]
    )
    assert state.needed_checkpoints() == {"a", "b", "c"}
    state.dialogue = Dialogue()
    assert state.needed_checkpoints() == {"a", "b", "c", "d", "e"}
    state.done = True
    assert state.needed_checkpoints() == set()


def test_only_what_is_new_is_read_again(scene: Scene) -> None:
    """A collector that has seen a trial's end opens none of its files any more."""
    made = collecting.experiment(scene, trials=2, trial_best=0)
    run(scene, made, 0, [("a", 1, None), ("b", 2, None)])
    run(scene, made, 1, [("c", 1, None)], end=None)
    collector = Collector(made, files(scene))
    collector.collect()
    made.trial(made.created().first_trial).records_path(1).unlink()
    keep(made, ["b"], by="model m version 1")
    assert collector.collect().deleted == ()
    assert on_disk(scene) == {"b", "c"}


def test_the_best_stays_whatever_else_a_later_run_reports(scene: Scene) -> None:
    """A group that counts from 0 in each run says nothing of where the run began."""
    made = collecting.experiment(scene)
    run(scene, made, 0, [("a", 3, 0.1), ("b", 5, 0.4)], end="preempted")
    trial = made.trial(made.created().first_trial)
    claim = {"hparams": {}, "time": 1.0, "resume": {"uuid": "b", "steps": 5}}
    number = trial.open_run(claim).run
    with RunLog.open(trial.records_path(number)) as log:
        log.append(metrics(0, "model", parameters=7))
    collect(scene, made)
    assert on_disk(scene) == {"a", "b"}


def test_files_that_are_missing_are_no_error(scene: Scene) -> None:
    """Somebody, or the site's purge, was faster."""
    made = collecting.experiment(scene, trial_best=0)
    run(scene, made, 0, [("a", 1, None), ("b", 2, None)])
    storage(scene).discard("a")
    assert [one.uuid for one in collect(scene, made).deleted] == ["a"]
    assert listed(made) == {"a": "DELETED", "b": "COMPLETED"}


def test_files_that_cant_be_removed_are_a_warning(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go all the same."""
    made = collecting.experiment(scene, trial_best=0)
    run(scene, made, 0, [("a", 1, None), ("b", 2, None), ("c", 3, None)])
    real = SharedFS.discard

    def discard(self: SharedFS, uuid: str) -> None:
        if uuid == "a":
            raise PermissionError(13, "Permission denied", "a")
        real(self, uuid)

    monkeypatch.setattr(SharedFS, "discard", discard)
    done = collect(scene, made)
    assert on_disk(scene) == {"a", "c"}
    assert len(done.problems) == 1 and "checkpoint a" in done.problems[0]
    assert [one.uuid for one in done.deleted] == ["b"] and done.freed == 5


def test_a_run_that_begins_meanwhile_finds_what_it_resumes_from(scene: Scene) -> None:
    """A collector that decided before it saw the claim leaves the files."""
    made = collecting.experiment(scene, trial_best=0)
    run(scene, made, 0, [("a", 1, None), ("b", 2, None)], end="preempted")
    collector = Collector(made, files(scene))
    chosen = collector.choose()
    assert [one.uuid for one in chosen] == ["a"]
    run(scene, made, 0, [], end=None, resume="a")  # another node did not see b yet
    done = remove(made, chosen, files(scene))
    assert on_disk(scene) == {"a", "b"}
    assert (done.deleted, done.freed) == ((), 0) and [one.uuid for one in done.left] == ["a"]


def test_a_lost_run_uses_nothing(scene: Scene) -> None:
    """Of a trial that may be queued again its latest stays alone; of one that was killed, nothing.
    What counts as freed is gone."""
    made = collecting.experiment(scene, trials=2, trial_best=0, latest=0)
    for index, (before, after) in enumerate([("a", "b"), ("c", "d")]):
        run(scene, made, index, [(before, 1, None)], end="preempted")
        run(scene, made, index, [(after, 2, None)], end=None, resume=before)
    assert collect(scene, made).deleted == () and on_disk(scene) == {"a", "b", "c", "d"}
    ids = tuple(range(made.created().first_trial, made.created().first_trial + 2))
    made.append(Lost(trials=ids))
    made.append(Intent(intent="kill_trial", trial=ids[1]))
    done = collect(scene, made)
    assert [one.uuid for one in done.deleted] == ["a", "c", "d"] and done.freed == 15
    assert on_disk(scene) == {"b"}


def test_a_lost_trial_that_comes_back_finds_what_it_resumes_from(scene: Scene) -> None:
    """As after a requeue by hand: its runner says so before it claims a run."""
    made = collecting.experiment(scene, trial_best=0)
    run(scene, made, 0, [("a", 1, None), ("b", 2, None)], end=None)
    made.append(Lost(trials=(made.created().first_trial,)))
    chosen = Collector(made, files(scene)).choose()
    made.append(Found(trials=(made.created().first_trial,)))
    run(scene, made, 0, [], end=None, resume="a")  # another node did not see b yet
    remove(made, chosen, files(scene))
    assert on_disk(scene) == {"a", "b"}


def test_a_collector_that_is_killed_leaves_no_half_deletion(tmp_path: Path) -> None:
    """At each of its calls: a listed checkpoint is whole, one whose files are gone is deleted, and
    the next collection goes on."""

    def three(name: str) -> tuple[Scene, ExperimentDir]:
        scene = Scene(tmp_path / name)
        made = collecting.experiment(scene, trial_best=0)
        run(scene, made, 0, [("a", 1, None), ("b", 2, None), ("c", 3, None)])
        return scene, made

    moments = deaths(partial(collect, *three("whole")), tmp_path / "whole")
    for call, moment in moments:
        scene, made = three(f"store-{call}-{moment}")
        killed = killed_at(partial(collect, scene, made), call, moment)
        assert killed == ((call, moment) != moments[-1])
        for uuid, state in listed(made).items():
            if state == "COMPLETED":
                assert (storage(scene).path(uuid) / "weights").read_text() == "12345"
            if storage(scene).exists(uuid):  # never half of it under its name
                assert (storage(scene).path(uuid) / "weights").exists()
        collect(scene, made)
        assert listed(made) == {"a": "DELETED", "b": "DELETED", "c": "COMPLETED"}
        assert storage(scene).exists("c")
        assert killed or on_disk(scene) == {"c"}


@pytest.mark.parametrize("end", ["completed", "preempted"])
def test_a_record_that_cant_be_read_deletes_nothing_of_its_trial(scene: Scene, end: str) -> None:
    """It may be the validation of the best one; the other trials are collected as ever."""
    made = collecting.experiment(scene, trials=2)
    run(scene, made, 0, [("best", 1, 0.1), ("worse", 2, 0.9), ("last", 3, None)], end=end)
    run(scene, made, 1, [("x", 1, 0.9), ("y", 2, 0.1), ("z", 3, None)])
    log = made.trial(made.created().first_trial).records_path(1)
    whole = log.read_bytes()
    log.write_bytes(whole.replace(b'"loss":0.1', b"\0" * 10))
    assert [one.uuid for one in collect(scene, made).deleted] == ["x"]
    assert on_disk(scene) == {"best", "worse", "last", "y", "z"}
    log.write_bytes(whole)
    assert [one.uuid for one in collect(scene, made).deleted] == ["worse"]


def test_a_torn_tail_hides_nothing_that_was_committed(scene: Scene) -> None:
    """A run that was killed while it wrote stops no collection."""
    made = collecting.experiment(scene)
    run(scene, made, 0, [("a", 1, 0.9), ("b", 2, 0.1)], end="preempted")
    log = made.trial(made.created().first_trial).records_path(1)
    log.write_bytes(log.read_bytes() + b'12345678 {"t":"met')
    run(scene, made, 0, [("c", 3, None)], resume="b")
    assert [one.uuid for one in collect(scene, made).deleted] == ["a"]


def test_a_fact_that_cant_be_read_may_protect_anything(scene: Scene) -> None:
    """Neither the policy nor a person deletes a checkpoint then, nor a part of one."""
    made = collecting.experiment(scene)
    run(scene, made, 0, [("a", 1, 0.9), ("b", 2, 0.1)])
    fact = made.log.name(keep(made, ["a"], by="model m"))
    fact.write_bytes(fact.read_bytes().replace(b"model m", b"\0" * 7))
    assert collect(scene, made).deleted == () and on_disk(scene) == {"a", "b"}
    done = mark_deleted(made, ["a"])
    assert done.deleted == () and str(fact) in done.kept["a"]
    assert str(fact) in (mark_files_removed(made, "a", {}) or "")
    assert listed(made) == {"a": "COMPLETED", "b": "COMPLETED"}
