"""The model registry: names are unique, versions have numbers that are never given twice."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from detslurm.store import NotFound, Store, StoreError, fs
from detslurm.store.facts import read_record
from detslurm.store.models import (
    ModelChanged,
    ModelCreated,
    ModelDeleted,
    RegistryState,
    VersionDeleted,
    VersionRegistered,
)
from tests.store.clients import on


def create(store: Store, name: str, **about: Any) -> int:
    """A new model's id."""
    state = store.models.commit(lambda _: ModelCreated(name=name, **about))
    return state.model(name).id


def register(store: Store, model: int, uuid: str = "u") -> int:
    """A new version's number."""
    fact = VersionRegistered(model=model, uuid=uuid, experiment=1, trial=1)
    return store.models.commit(lambda _: fact).model(model).last_version


def test_a_model_has_what_was_said_of_it(store: Store) -> None:
    """Created, changed and read on another node, whatever the values are."""
    number = create(store, "resnet", description="of 18 layers", labels=("a",), workspace="vision")
    odd = {"$float": 1, "nan": math.nan, "nested": {"list": [1, None]}}
    store.models.commit(lambda _: ModelChanged(model=number, fields={"metadata": odd}))
    with on("elsewhere"):
        model = store.models.state().model("resnet")
    assert (model.id, model.description, model.labels) == (number, "of 18 layers", ("a",))
    assert math.isnan(model.metadata.pop("nan"))
    assert model.metadata == {"$float": 1, "nested": {"list": [1, None]}}
    assert model.workspace == "vision" and not model.archived


def test_a_name_belongs_to_one_model(store: Store) -> None:
    """A taken name is refused at creation and at renaming; a deleted model's name is free."""
    first, second = create(store, "one"), create(store, "two")
    with pytest.raises(StoreError, match="already"):
        create(store, "one")
    rename = ModelChanged(model=second, fields={"name": "one"})
    with pytest.raises(StoreError, match="already"):
        store.models.commit(lambda _: rename)
    store.models.commit(lambda _: ModelDeleted(model=first))
    assert store.models.commit(lambda _: rename).model("one").id == second
    with pytest.raises(NotFound):
        store.models.state().model(first)


def test_numbers_of_deleted_versions_are_not_given_again(store: Store) -> None:
    """The next version has the next number, whatever became of those before."""
    model = create(store, "m")
    assert [register(store, model), register(store, model)] == [1, 2]
    state = store.models.commit(lambda _: VersionDeleted(model=model, version=2))
    assert list(state.model(model).versions) == [1]
    with pytest.raises(NotFound, match="was deleted"):
        state.model(model).version(2)
    assert register(store, model) == 3


def test_a_version_is_described_apart_from_its_model(store: Store) -> None:
    """Its name and notes change; which checkpoint it is does not."""
    model = create(store, "m")
    register(store, model, "u1")
    change = ModelChanged(model=model, version=1, fields={"name": "final", "notes": "ok"})
    version = store.models.commit(lambda _: change).model(model).version(1)
    assert (version.name, version.notes, version.uuid) == ("final", "ok", "u1")
    other = ModelChanged(model=model, version=1, fields={"uuid": "u2"})
    with pytest.raises(StoreError, match="can't be changed"):
        store.models.commit(lambda _: other)
    wrong = ModelChanged(model=model, fields={"labels": 5})
    with pytest.raises(StoreError, match="array"):
        store.models.commit(lambda _: wrong)


def test_what_cant_be_read_is_reported_and_skipped(store: Store) -> None:
    """A torn fact, one of a newer version, and one that never had an effect end no reader."""
    model = create(store, "m")
    log = store.models.log
    assert log.put(2, {"type": "model_signed", "model": model})
    Path(log.path_text(3)).write_bytes(b"00000000 {}\n")
    assert log.put(4, {"type": "model_changed", "model": 77, "fields": {}})
    assert register(store, model) == 1
    state = store.models.state()
    assert state.position == 5 and len(state.problems) == 2
    assert "000003.json: checksum" in state.problems[0] and "no model 77" in state.problems[1]


def test_nobody_else_changes_a_model(store: Store) -> None:
    """Facts count by who owns their file: others can neither rename, nor add a version."""
    model = create(store, "m")
    register(store, model)
    state = store.models.state()
    mine = os.geteuid()
    for fact in (
        {"type": "model_deleted", "model": model},
        {"type": "model_changed", "model": model, "fields": {"name": "stolen"}},
        {"type": "version_registered", "model": model, "uuid": "x", "experiment": 2, "trial": 2},
    ):
        problem = state.accept({"n": state.position + 1, "by": "root", **fact}, mine + 1000)
        assert problem and "belongs to" in problem
    assert state.model("m").last_version == 1
    assert state.accept({"n": 9, "type": "model_deleted", "model": model}, mine) is None


def test_listing_reads_the_new_facts_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache holds what was folded; it can be deleted, torn, or old."""
    for number in range(40):
        create(store, f"m{number}")
    cache = store.own("models.json")
    assert store.models.state().position == 40 and cache.exists()
    read: list[str] = []
    original = fs.read_file

    def counted(path: fs.AnyPath, **how: Any) -> bytes | None:
        read.append(str(path))
        return original(path, **how)

    monkeypatch.setattr(fs, "read_file", counted)
    assert len(store.models.state().models) == 40
    assert len(read) == 11  # the cache, 8 facts since, and twice one that is not there yet
    cache.write_bytes(b"torn")
    assert len(store.models.state().models) == 40
    cache.unlink()
    assert len(store.models.state().models) == 40


def _use(root: Path, who: int, seconds: float) -> None:
    """Register, rename, delete and create at random until killed."""
    store, choose = Store(root), random.Random(who)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            _act(store, choose, f"{who}-{choose.random()}")
        except NotFound:
            continue
        except StoreError as error:
            assert "already" in str(error), error


def _act(store: Store, choose: random.Random, mark: str) -> None:
    name = f"m{choose.randrange(4)}"
    kind = choose.choice(["register"] * 6 + ["create", "rename", "delete", "forget"])
    if kind == "create":
        store.models.commit(lambda _: ModelCreated(name=name))
        return
    model = store.models.state().model(name)
    if kind == "register":
        number = register(store, model.id, mark)
        store.models.state()  # and note what was promised, where a kill may come in between
        folder = store.path / "promised"
        fs.put_if_absent(folder / f"{model.id}-{number}-{mark}", b"")
    elif kind == "rename":
        new = f"m{choose.randrange(4)}"
        store.models.commit(lambda _: ModelChanged(model=model.id, fields={"name": new}))
    elif kind == "delete":
        store.models.commit(lambda _: ModelDeleted(model=model.id))
    elif model.versions:
        gone = choose.choice(list(model.versions))
        store.models.commit(lambda _: VersionDeleted(model=model.id, version=gone))


def test_eight_writers_under_kill_never_share_a_number(tmp_path: Path) -> None:
    """Processes that are killed at any moment leave no version twice, no name twice, no hole."""
    store = Store.open(tmp_path / "store")
    (store.path / "promised").mkdir()
    context, choose = get_context("fork"), random.Random(7)
    for number in range(4):
        create(store, f"m{number}")
    workers = [
        context.Process(target=_use, args=(store.path, who, 600.0), daemon=True) for who in range(8)
    ]
    for worker in workers:
        worker.start()
    for who, worker in enumerate(workers):
        _wait_for_facts(store, 8 * (who + 1))
        time.sleep(choose.uniform(0, 0.02))  # anywhere in what it does
        assert worker.pid is not None and worker.is_alive()
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        workers[who] = context.Process(target=_use, args=(store.path, who + 8, 600.0), daemon=True)
        workers[who].start()
    for worker in workers:
        worker.kill()
        worker.join()
    _check(store)


def _wait_for_facts(store: Store, number: int) -> None:
    end = time.monotonic() + 300
    while not fs.exists(store.models.log.name(number)):
        assert time.monotonic() < end, f"nobody has written fact {number}"
        time.sleep(0.005)


def _check(store: Store) -> None:
    state = store.models.state()
    assert state.problems == [] and state.position > 50
    names = [model.name for model in state.models.values()]
    assert len(set(names)) == len(names)
    cold = RegistryState()
    versions: dict[tuple[int, int], str] = {}
    for number in range(1, state.position + 1):
        fact = read_record(store.models.log.path_text(number))
        assert fact is not None
        assert cold.accept({**fact, "n": number}, os.geteuid()) is None
        if fact["type"] == "version_registered":
            key = (fact["model"], cold.model(fact["model"]).last_version)
            assert versions.setdefault(key, fact["uuid"]) == fact["uuid"]
    assert cold == state
    promised = [p.name.split("-", 2) for p in (store.path / "promised").glob("[0-9]*")]
    assert promised
    assert {(int(model), int(n)): uuid for model, n, uuid in promised}.items() <= versions.items()
    per_model: dict[int, list[int]] = {}
    for model, number in versions:
        per_model.setdefault(model, []).append(number)
    assert all(found == list(range(1, len(found) + 1)) for found in per_model.values())
