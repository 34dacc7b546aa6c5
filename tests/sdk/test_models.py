"""Models by name: what is registered is never deleted, whoever races and whoever is killed."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import pytest

from detslurm.core._usage_reports import UsageReports
from detslurm.sdk import Client, LifecycleError, ModelSortBy, OrderBy
from detslurm.sdk.disk import deletion
from detslurm.store import ExperimentDir, ExperimentFacts, NotFound, StoreError, fold_facts
from detslurm.store.checkpoint_facts import CheckpointGone, mark_deleted
from detslurm.store.registry import ModelRegistry
from tests.sdk.scenes import Scene

UUIDS = [f"{n:08x}-0000-4000-8000-000000000000" for n in range(1, 4)]


@pytest.fixture
def trained(scene: Scene) -> ExperimentDir:
    """An experiment whose trials have saved a checkpoint each."""
    experiment = scene.experiment(3)
    for index, uuid in enumerate(UUIDS):
        ref = f"7_{index}"
        scene.run(experiment, index, losses=[0.5, 0.1], checkpoint=uuid, ref=ref, end="completed")
    return experiment


def test_a_checkpoint_is_found_by_the_models_name(scene: Scene, trained: ExperimentDir) -> None:
    """The newest version by default, one by its number, and what was said of it."""
    model = scene.client.create_model("digits", "of a small net", {"layers": 2}, ["b", "a"])
    first = model.register_version(UUIDS[0][:8], notes="works")
    model.register_version(scene.client.checkpoint(UUIDS[1]), name="better", labels=["x"])
    found = scene.client.get_model("digits")
    assert (found.description, found.metadata, found.labels) == (
        "of a small net", {"layers": 2}, ["a", "b"],
    )  # fmt: skip
    newest = found.get_version()
    assert newest is not None
    assert (newest.version, newest.name, newest.labels) == (2, "better", ["x"])
    assert newest.checkpoint.uuid == UUIDS[1]
    assert newest.checkpoint.validation_metrics == {"loss": 0.1}
    assert [row.metrics for row in newest.get_metrics("validation")] == [{"loss": 0.1}]
    again = found.get_version(1)
    assert again is not None and (again.notes, again.row) == ("works", first.row)
    assert [one.version for one in found.list_versions()] == [2, 1]
    assert scene.client.get_model(str(found.model_id)).name == "digits"
    with pytest.raises(NotFound, match="version 3"):
        found.get_version(3)


def test_a_notebook_shows_models(scene: Scene, trained: ExperimentDir) -> None:
    """What is said of them, escaped, with the newest versions."""
    model = scene.client.create_model("m", "<b>bold</b>", {"layers": 2})
    version = model.register_version(UUIDS[0], notes="<i>")
    html = model._repr_html_()
    assert "&lt;b&gt;bold" in html and "layers: 2" in html and UUIDS[0] in html
    assert UUIDS[0] in version._repr_html_() and "&lt;i&gt;" in version._repr_html_()
    assert repr(model) == f"Model(name='m', model_id={model.model_id}, versions=1)"
    assert repr(version) == f"ModelVersion(model='m', version=1, checkpoint='{UUIDS[0]}')"


def test_what_is_said_of_a_model_changes(scene: Scene, trained: ExperimentDir) -> None:
    """Each change is of the value as it is in the store, not as this object has seen it."""
    model = scene.client.create_model("a")
    other = scene.client.get_model("a")
    model.add_metadata({"x": 1, "y": [1, {"z": None}]})
    other.add_metadata({"x": 2})
    other.remove_metadata(["y", "unknown"])
    model.add_labels(["one"])
    other.add_labels(["two"])
    other.remove_labels(["one"])
    model.set_notes("notes")
    model.set_description("text")
    model.set_name("b")
    model.move_to_workspace("vision")
    model.archive()
    found = scene.client.get_model("b")
    assert (found.metadata, found.labels, found.workspace) == ({"x": 2}, ["two"], "vision")
    assert (found.notes, found.description, found.archived) == ("notes", "text", True)
    assert found.last_updated_time is not None and found.creation_time is not None
    assert found.last_updated_time > found.creation_time
    version = found.register_version(UUIDS[0])
    version.set_name("final")
    version.set_notes("n")
    version.add_metadata({"k": "v"})
    version.set_labels(["l"])
    assert (version.name, version.notes, version.metadata, version.labels) == (
        "final", "n", {"k": "v"}, ["l"],
    )  # fmt: skip
    with pytest.raises(NotFound):
        scene.client.get_model("a")


def test_a_text_is_no_list(scene: Scene) -> None:
    """Its characters are no labels and no names: nothing is changed."""
    model = scene.client.create_model("a", labels=["x", "xy"], metadata={"k": 1})
    for change in (model.set_labels, model.add_labels, model.remove_labels):
        with pytest.raises(TypeError, match="labels must be a list, not 'xy'"):
            change("xy")
    with pytest.raises(TypeError, match="keys must be a list, not 'k'"):
        model.remove_metadata("k")
    found = scene.client.get_model("a")
    assert (found.labels, found.metadata) == (["x", "xy"], {"k": 1})


def test_models_are_sorted_and_chosen(scene: Scene) -> None:
    """By anything that a list shows; archived ones are left out."""
    client = scene.client
    for name, labels in (("b", ["x"]), ("a", ["x", "y"]), ("C", []), ("old", ["z"])):
        client.create_model(name, f"the {name}", labels=labels)
    client.get_model("old").archive()
    client.get_model("C").move_to_workspace("w")

    def names(*args: Any, **how: Any) -> list[str]:
        return [one.name for one in client.list_models(*args, **how)]

    assert names() == ["C", "a", "b"]
    assert names("CREATION_TIME", OrderBy.DESC) == ["C", "a", "b"]
    assert names(ModelSortBy.LAST_UPDATED_TIME) == ["b", "a", "C"]
    assert names(labels=["x"]) == ["a", "b"]
    assert names(name="c") == ["C"] and names(description="THE B") == ["b"]
    assert names(workspace="w") == ["C"] and names(archived=True)[-1] == "old"
    assert client.get_model_labels() == ["x", "y", "z"]


@pytest.mark.parametrize("name", ["", "a/b", "17", " a", "a\nb", "\x1b[31m"])
def test_a_name_is_a_name(scene: Scene, name: str) -> None:
    """What could be taken for an id or a path, or would confuse a terminal, is refused."""
    with pytest.raises(LifecycleError):
        scene.client.create_model(name)
    with pytest.raises(TypeError, match="plain data"):
        scene.client.create_model("fine", metadata={"x": object()})


def test_nothing_deletes_what_is_registered(scene: Scene, trained: ExperimentDir) -> None:
    """Not the checkpoint's own `delete`, and not a collection; until the version is deleted."""
    client = scene.client
    model = client.create_model("m")
    version = model.register_version(UUIDS[0])
    model.register_version(UUIDS[1])
    with pytest.raises(LifecycleError, match="model m"):
        client.checkpoint(UUIDS[0]).delete()
    assert mark_deleted(trained, UUIDS).deleted == (UUIDS[2],)
    assert version.checkpoint.kept_by() == ["model m"]
    reports = UsageReports(trained.trial(trained.created().first_trial))
    reports.report_task_using_model_version(version)
    reports.report_task_using_model_version(version)
    assert version.checkpoint.used_by("m", 1) == version.checkpoint.used_by() == [1]
    assert version.checkpoint.used_by("m", 2) == client.checkpoint(UUIDS[1]).used_by() == []
    assert len(fold_facts(trained).checkpoints.used) == 1
    version.delete()
    assert mark_deleted(trained, UUIDS).deleted == (UUIDS[0], UUIDS[2])
    model.delete()
    assert set(mark_deleted(trained, UUIDS).deleted) == set(UUIDS)


def test_an_experiment_with_a_registered_checkpoint_stays(
    scene: Scene, trained: ExperimentDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is registered in the moment in which the experiment is deleted."""
    model = scene.client.create_model("m")
    seen: list[int] = []

    def registered_meanwhile(directory: ExperimentDir) -> ExperimentFacts:
        facts = refuse(directory)
        if not seen:
            seen.append(model.register_version(UUIDS[0]).version)
        return facts

    refuse = deletion.refuse_kept
    monkeypatch.setattr(deletion, "refuse_kept", registered_meanwhile)
    with pytest.raises(LifecycleError, match="model m"):
        scene.client.experiment(trained.id).delete()
    version = model.get_version()
    assert version is not None and version.checkpoint.path is not None
    assert (version.checkpoint.path / "weights").exists()
    version.delete()
    scene.client.experiment(trained.id).delete()
    with pytest.raises((StoreError, LifecycleError)):
        model.register_version(UUIDS[1])


def test_an_experiment_with_a_fact_that_cant_be_read_stays(
    scene: Scene, trained: ExperimentDir
) -> None:
    """It may be the one that says what is registered."""
    version = scene.client.create_model("m").register_version(UUIDS[0])
    (number,) = fold_facts(trained).checkpoints.kept
    fact = trained.log.name(number)
    whole = fact.read_bytes()
    fact.write_bytes(whole.replace(b'"', b"'"))
    with pytest.raises(LifecycleError, match=rf"{fact.name}.*nothing is deleted"):
        scene.client.experiment(trained.id).delete()
    assert version.checkpoint.path is not None and version.checkpoint.path.is_dir()
    fact.write_bytes(whole)
    with pytest.raises(LifecycleError, match="model m"):
        scene.client.experiment(trained.id).delete()


def test_files_that_somebody_removed_are_no_version(scene: Scene, trained: ExperimentDir) -> None:
    """A name for nothing would be found out when it is needed."""
    model = scene.client.create_model("m")
    shutil.rmtree(scene.root / "checkpoints" / UUIDS[0])
    with pytest.raises(LifecycleError, match="are gone"):
        model.register_version(UUIDS[0])
    assert model.get_version() is None


def test_what_was_deleted_cant_be_registered(scene: Scene, trained: ExperimentDir) -> None:
    """Said at once, and nothing stays protected; nor by a registration that was refused."""
    model = scene.client.create_model("m")
    mark_deleted(trained, UUIDS[:1])
    with pytest.raises((CheckpointGone, LifecycleError)):
        model.register_version(UUIDS[0])
    other = scene.client.get_model("m")
    model.delete()
    with pytest.raises(NotFound):
        other.register_version(UUIDS[1])
    assert mark_deleted(trained, UUIDS[1:2]).deleted == (UUIDS[1],)


def killed(act: Callable[[], None]) -> None:
    """Run something in a process that kills itself."""
    worker = get_context("fork").Process(target=act)
    worker.start()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL


def test_a_registration_that_is_killed_leaves_all_or_nothing(
    scene: Scene, trained: ExperimentDir
) -> None:
    """Killed before the registry knows of it, the checkpoint is free again; after, it is kept."""
    scene.client.create_model("m")
    commit = ModelRegistry.commit

    def before(registry: ModelRegistry, decide: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def after(registry: ModelRegistry, decide: Any) -> None:
        commit(registry, decide)
        os.kill(os.getpid(), signal.SIGKILL)

    def register(uuid: str, how: Any) -> None:
        ModelRegistry.commit = how  # type: ignore[method-assign]
        scene.client.get_model("m").register_version(uuid)

    killed(lambda: register(UUIDS[0], before))
    killed(lambda: register(UUIDS[1], after))
    assert [v.row.uuid for v in scene.client.get_model("m").list_versions()] == [UUIDS[1]]
    deletion = mark_deleted(trained, UUIDS[:2])
    assert deletion.deleted == (UUIDS[0],)
    assert deletion.kept == {UUIDS[1]: "model m"}


def _race(scene: Scene, experiment: ExperimentDir, uuid: str, *, deletes: bool) -> None:
    if deletes:
        mark_deleted(experiment, [uuid])
        return
    try:
        scene.client.get_model("m").register_version(uuid)
    except (StoreError, LifecycleError):
        return


def _saved_in_turn(scene: Scene, count: int) -> tuple[ExperimentDir, list[str]]:
    """The checkpoints that the runs of one trial have saved, one after the other, and a model."""
    scene.client.create_model("m")
    experiment = scene.experiment(1)
    uuids = [f"{n:08x}-0000-4000-8000-00000000000a" for n in range(count)]
    for n, uuid in enumerate(uuids):
        resume = {"uuid": uuids[n - 1], "steps": n} if n else None
        end = "completed" if uuid == uuids[-1] else "preempted"
        scene.run(experiment, losses=[0.5], checkpoint=uuid, resume=resume, end=end)
    return experiment, uuids


@pytest.mark.parametrize("kill", [False, True])
def test_registering_and_deleting_at_once(scene: Scene, kill: bool) -> None:
    """One of them wins: no version's checkpoint is ever deleted."""
    experiment, uuids = _saved_in_turn(scene, 12)
    context = get_context("fork")
    for n, uuid in enumerate(uuids):
        both = [
            context.Process(target=_race, args=(scene, experiment, uuid), kwargs={"deletes": d})
            for d in (n % 2 == 0, n % 2 == 1)
        ]
        for worker in both:
            worker.start()
        if kill:
            both[1].join(0.005 * n)
            both[1].kill()
        for worker in both:
            worker.join()
    registered = {v.row.uuid for v in scene.client.get_model("m").list_versions()}
    deleted = {u for u in uuids if scene.client.checkpoint(u).state == "DELETED"}
    assert not registered & deleted
    assert kill or registered | deleted == set(uuids)


def _register_all(scene: Scene, uuids: list[str]) -> None:
    for uuid in uuids:
        _race(scene, scene.store.experiment(1), uuid, deletes=False)


def _collect_all(scene: Scene) -> None:
    none = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 0}
    scene.client.stored(1).set_gc_policy(**none)


def test_collections_and_registrations_that_are_killed(scene: Scene) -> None:
    """A collection deletes whatever no version needs, and nothing else, whoever dies at what."""
    _, uuids = _saved_in_turn(scene, 16)
    scene.client.get_model("m").register_version(uuids[0])  # the others' come late, or not at all
    context = get_context("fork")
    for n in range(4):
        share = uuids[n or 4 :: 4]
        workers = [context.Process(target=_register_all, args=(scene, share))]
        workers += [context.Process(target=_collect_all, args=(scene,)) for _ in range(n % 2)]
        for worker in workers:
            worker.start()
        workers[-1].join(0.01 * n)
        workers[-1].kill()
        for worker in workers:
            worker.join()
    _collect_all(scene)
    scene.client.gc()  # what a killed one had deleted, and whose files it left
    registered = {v.row.uuid for v in scene.client.get_model("m").list_versions()}
    there = {uuid for uuid in uuids if (scene.root / "checkpoints" / uuid / "weights").exists()}
    assert there == registered
    states = {uuid: scene.client.checkpoint(uuid).state for uuid in uuids}
    assert {uuid for uuid, state in states.items() if state == "COMPLETED"} == registered
    assert uuids[0] in registered


def test_another_users_checkpoint_is_refused(
    scene: Scene, trained: ExperimentDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner's jobs may delete it: nobody else can promise that it stays."""
    model = scene.client.create_model("m")
    monkeypatch.setattr(ExperimentDir, "foreign_owner", lambda _: "bob")
    with pytest.raises(LifecycleError, match="belongs to bob"):
        model.register_version(UUIDS[0])


def test_determineds_functions_know_models(
    scene: Scene, trained: ExperimentDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`client.create_model` and the others are methods of the default store."""
    from detslurm.experimental import client

    monkeypatch.setenv("DETSLURM_ROOT", str(scene.root))
    monkeypatch.setattr(client, "_shared", None)
    model = client.create_model("m", metadata={"a": 1})
    assert isinstance(model, client.Model)
    assert client.get_model("m").metadata == {"a": 1}
    assert client.get_model_by_id(model.model_id).name == "m"
    assert [one.name for one in client.list_models(client.ModelSortBy.NAME)] == ["m"]
    with pytest.warns(FutureWarning, match="list_models") as caught:
        assert [one.name for one in client.get_models()] == ["m"]
    assert caught[0].filename == __file__  # the caller is warned, not detslurm
    with pytest.warns(FutureWarning, match="list_versions"):
        assert model.get_versions() == []
    assert client.get_model_labels() == []
    assert isinstance(Client(scene.root).get_model("m"), client.Model)
