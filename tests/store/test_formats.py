"""Two versions at work in one store never decide differently: the older one leaves to the newer one
what follows rules that it doesn't know, and shows it all the same.

Version 2 is this code with the format 2, and with a type of record that version 1 has never seen.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.crowd import search
from detslurm.sdk import Client
from detslurm.searcher import State
from detslurm.store import EventLog, ExperimentDir, Store, StoreError, fold_experiment, fold_facts
from detslurm.store.checkpoint_facts import mark_deleted
from detslurm.store.errors import NewerFormat
from detslurm.store.event_log import packed
from detslurm.store.facts import FactLog, put_record
from detslurm.store.models import ModelCreated
from detslurm.store.records import Set
from tests.sdk.scenes import Queue, Scene
from tests.store import collecting, scenes

KNOWN_BY_VERSION_2 = {"type": "cited", "paper": "https://example.org"}
SENTENCE = r"was written by a newer detslurm \(format 2\)\. This one shows .* Use the newer one"


@contextmanager
def version(number: int) -> Iterator[None]:
    with mock.patch("detslurm.store.facts.FORMAT", number):
        yield


def files(store: Store) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in store.path.rglob("*") if path.is_file()}


def search_log(of: ExperimentDir) -> EventLog[State]:
    return EventLog(of.search, search(4))


ACTIONS: dict[str, Callable[[ExperimentDir], object]] = {
    "set": lambda one: one.append(Set(field="name", value="other")),
    "delete a checkpoint": lambda one: mark_deleted(one, [str(one.log.last_listed())]).kept,
    "a record of version 2": lambda one: one.append(KNOWN_BY_VERSION_2),
}


@settings(max_examples=15)
@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.booleans(), st.sampled_from([*ACTIONS]))))
def test_versions_take_turns(steps: list[tuple[int, bool, str]]) -> None:
    """In an experiment of version 1 both do all; in one of version 2 version 1 changes no file."""
    with TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "store")
        with version(1):
            ours = scenes.experiment(store, name="one")
        with version(2):
            theirs = scenes.experiment(store, name="two")
        for who, is_ours, action in steps:
            number, before = (ours if is_ours else theirs).id, files(store)
            with version(who):
                one = store.experiment(number)
                try:
                    kept = ACTIONS[action](one)
                except NewerFormat:
                    kept = {"c": "all of it"}
                    assert (who, is_ours) == (1, False)
                assert (files(store) == before) == (who == 1 and not is_ours)
                assert action != "delete a checkpoint" or bool(kept) == (who == 1 and not is_ours)
        views = []
        for who in (1, 2):
            with version(who):
                views.append(fold_experiment(ours))
                shown = fold_experiment(theirs)
            assert shown.name in ("two", "other") and len(shown.problems) == (who == 1)
        assert views[0] == views[1] and not views[0].problems


def test_a_search_is_decided_up_to_the_first_event_of_a_newer_version(store: Store) -> None:
    """Both versions have the same state until then; the older one adds nothing after it, and reads
    no cache of the newer one, which may know more of a trial."""
    made = scenes.experiment(store, search=True)
    made.search.mkdir()
    old = search_log(made)
    for worker in "abc":
        state = old.commit([state_request(old.state, worker)])
    assert FactLog(made.search).put(4, {"v": 2, "id": "x", "events": [{"e": "bet", "trial": 0}]})
    late = search_log(made)
    for log in (old, late):
        with pytest.raises(NewerFormat, match=SENTENCE):
            log.commit([state_request(log.state, "d")])
        assert log.state == state and log.position == 3
    assert FactLog(made.search).first_free(0) == 5
    with version(2):
        assert search_log(made).catch_up() == state
        with mock.patch("detslurm.store.event_log.__version__", "0.2.0"):
            newer = search_log(made)
            newer.catch_up()
            newer.save()
            assert search_log(made).position == 4
    assert search_log(made).position == 0
    assert not packed(FactLog(made.search), 1)


def state_request(state: State, worker: str) -> dict[str, object]:
    return state.request_event(worker, worker)


def test_logs_of_the_whole_store_are_read_and_not_continued(store: Store) -> None:
    """Ids and names of models: an older version gives none, and no cache hides that from it."""
    ours = scenes.finished(store)
    store.models.commit(lambda state: ModelCreated(name="m"))
    decisive = {"v": 2, "type": "divided", "id": 1}
    assert store.ledger.log.put(2, decisive) and store.models.log.put(2, decisive)
    for _ in range(40):  # caches are written meanwhile
        store.touch(ours.id)
    for _ in range(2):
        with pytest.raises(NewerFormat, match=SENTENCE):
            store.reserve_trials(9, 1)
        with pytest.raises(NewerFormat, match=SENTENCE):
            store.models.commit(lambda state: ModelCreated(name="n"))
        assert store.find_trial(1).experiment_id == ours.id
        assert [model.name for model in store.models.state().models.values()] == ["m"]
    with version(2):
        assert store.reserve_trials(9, 1) == 2
        assert not store.ledger_state().problems and not store.models.state().problems
        assert len(store.models.commit(lambda state: ModelCreated(name="n")).models) == 2
        for _ in range(40):  # a cache of the newer version has them as well
            store.touch(ours.id)
            store.models.commit(lambda state: ModelCreated(name=f"m{state.position}"))
    with pytest.raises(NewerFormat, match=SENTENCE):
        store.reserve_trials(9, 1)
    with pytest.raises(NewerFormat, match=SENTENCE):
        store.models.commit(lambda state: ModelCreated(name="o"))


def test_no_cache_has_what_an_older_version_made_of_it(store: Store) -> None:
    """It lists a finished experiment of a newer version by folding it, each time."""
    with version(2):
        scenes.finished(store)
    client = Client(store.path, warn=lambda text: None, connect=lambda name: Queue())
    for _ in range(2):
        assert [one.state for one in client.rows()] == ["COMPLETED"]
    assert not (store.path / "experiments/1/summary.json").exists()
    with version(2):
        assert [one.state for one in client.rows()] == ["COMPLETED"]
    assert (store.path / "experiments/1/summary.json").exists()
    assert store.catalog().unfinished == []


def test_an_older_runner_leaves_a_newer_experiment(store: Store) -> None:
    """Its job ends with the reason, and nothing of the trial is touched."""
    with version(2):
        made = scenes.experiment(store)
    made.write_config({"entrypoint": {"by": "version 2"}, "searcher": {"name": "single"}}, "")
    before = files(store)
    env = os.environ | {"DETSLURM_ROOT": str(store.path), "DETSLURM_LOCAL_JOB_ID": "1"}
    argv = [sys.executable, "-m", "detslurm.exec.runner", str(made.path), "0"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and "newer detslurm (format 2)" in done.stdout, done
    assert files(store) == before and fold_facts(made).format == 2


def test_an_older_client_shows_it_and_changes_nothing(store: Store) -> None:
    with version(2):
        scenes.finished(store)
    one = Client(store.path, warn=lambda text: None, connect=lambda name: Queue()).experiment(1)
    assert [trial.state for trial in one.iter_trials()] == ["COMPLETED"] and one.top_checkpoint()
    before = files(store)
    changes: list[Callable[[], object]] = [
        *(one.archive, one.delete, lambda: one.set_name("x")),
        lambda: one.bundle(store.path / "one.tar"),
    ]
    for change in changes:
        with pytest.raises((StoreError, RuntimeError), match=r"newer|can't be read"):
            change()
    assert files(store) == before


def test_an_older_kill_ends_the_jobs(tmp_path: Path) -> None:
    """A user can stop them with any version; the error says that nothing is recorded."""
    scene = Scene(tmp_path / "store")
    with version(2):
        scene.run(scene.experiment(job="7"))
    scene.queue.put("7", "RUNNING")
    with pytest.raises(NewerFormat, match=SENTENCE):
        scene.client.experiment(1).kill()
    assert scene.queue.jobs["7"].state == "CANCELLED"
    assert scene.warnings[0].startswith("experiment 1 can't be recorded as killed")


@pytest.mark.parametrize("record", ["start", "end"])
def test_no_run_begins_after_a_claim_or_an_end_of_a_newer_version(
    store: Store, record: str
) -> None:
    """The trial may be over by what this version can't read."""
    trial = scenes.trial(store)
    scenes.run(trial, [], "completed")
    path = trial.path / f"run-1.{record}.json"
    path.unlink()
    put_record(path, {"v": 2, "type": record, "run": 1, "outcome": "completed"})
    before = files(store)
    with pytest.raises(NewerFormat, match=SENTENCE):
        trial.open_run({"hparams": {}})
    assert files(store) == before


def test_an_older_gc_leaves_all_files_of_a_newer_experiment(tmp_path: Path) -> None:
    """Its logs may have records of another kind, which name what looks like a broken upload."""
    scene = Scene(tmp_path / "store")
    with version(2):
        made = collecting.experiment(scene)
        trial = made.trial(made.created().first_trial)
        started = [{"t": "checkpoint_started", "uuid": "a"}, {"t": "sealed", "uuid": "a"}]
        scenes.run(trial, started, "completed")
        scene.checkpoint("a")
    done = scene.client.gc(unrecorded=True)
    assert not done.leftovers and not done.checkpoints and collecting.on_disk(scene) == {"a"}
    assert "newer detslurm" in scene.warnings[0]


def test_an_older_gc_keeps_what_a_newer_ledger_may_name(tmp_path: Path) -> None:
    """Also where the newer version's gc has cached the ledger."""
    scene, stray = Scene(tmp_path / "store"), str(UUID(int=4, version=4))
    scene.run(scene.experiment(), end="completed")
    scene.store.ledger.log.append({"v": 2, "type": "divided"})
    os.utime(scene.checkpoint(stray), (1.0, 1.0))
    with version(2):
        assert scene.client.gc().unrecorded == 1
    scene.client.gc(unrecorded=True)
    assert collecting.on_disk(scene) == {stray}


def test_an_older_gc_rebuilds_nothing_in_a_newer_ledger(store: Store) -> None:
    """The ids that it misses may be in a record that it doesn't know."""
    scenes.finished(store)
    first = store.ledger.log.name(1)
    first.unlink()
    put_record(first, {"v": 2, "type": "divided", "id": 1})
    warnings: list[str] = []
    Client(store.path, warn=warnings.append, connect=lambda name: Queue()).gc()
    assert store.ledger.log.last_listed() == 1
    assert any(text.startswith("the ledger is not rebuilt") for text in warnings)
