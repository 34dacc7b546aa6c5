"""Determined's client: its functions, and its methods of experiments and trials."""

from __future__ import annotations

import inspect
import math
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from detslurm.config.run_config import RunConfig
from detslurm.exec.environment import run_environment
from detslurm.experimental import client
from detslurm.sdk import Experiment, LifecycleError, OrderBy, TrialSortBy
from detslurm.sdk.enums import ExperimentSortBy, ExperimentState
from detslurm.sdk.experiments.ordering import duration
from detslurm.sdk.experiments.polling import first_trial
from detslurm.sdk.trials.summary_metrics import summary
from detslurm.store import MetricRow, NotFound, RunLog
from detslurm.store.checkpoint_facts import mark_deleted
from tests.sdk.scenes import CUSTOM, Scene, say
from tests.store.faults import race


@pytest.fixture
def shared(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """The scene's store is the default one."""
    monkeypatch.setenv("DETSLURM_ROOT", str(scene.root))
    return scene


def test_functions_go_to_the_default_store(shared: Scene) -> None:
    """They find what is there, by id and by list, and follow the default."""
    trial = shared.run(shared.experiment(name="one"), losses=[0.5], end="completed")
    assert client.get_experiment(1).name == "one"
    assert client.get_trial(trial.id).get_experiment().id == 1
    assert client.get_trial(str(trial.id)).id == trial.id
    assert [one.id for one in client.list_experiments()] == [1]
    with pytest.raises(NotFound, match="no trial 9"):
        client.get_trial(9)


def test_every_name_is_there_and_shown() -> None:
    """Tab shows what `from ... import` finds."""
    assert set(dir(client)) >= {"Determined", "Experiment", "create_experiment", "login"}
    assert all(getattr(client, name) is not None for name in dir(client))
    with pytest.raises(AttributeError, match="no attribute 'create_everything'"):
        _ = client.create_everything


def test_what_a_master_would_need_has_no_effect(shared: Scene) -> None:
    """Scripts that log in go on."""
    client.login(master="https://example.org", user="ada", password="x")
    client.logout()
    assert client.Determined("https://example.org", user="ada").store.path == shared.root
    me = client.whoami()
    assert me.username == str(me) and me.user_id == os.geteuid()
    assert client.get_user_by_name(me).display_name
    shared.run(shared.experiment(), end="completed")
    assert client.list_users() == sorted(["alice", me])
    assert client.get_user_by_name("alice").username == "alice"
    client.get_experiment(1).move_to_project("vision", "digits")
    assert client.get_experiment(1).project == "digits"
    with pytest.raises(NotFound, match="no user 'nobody-of-that-name'"):
        client.get_user_by_name("nobody-of-that-name")


FILTERS: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [1, 2, 3]),
    ({"experiment_ids": [3, 1]}, [1, 3]),
    ({"labels": ["a"]}, [1, 2]),
    ({"labels": ["a", "b"]}, [2]),
    ({"users": ["bob"]}, [2]),
    ({"states": [ExperimentState.COMPLETED]}, [1, 3]),
    ({"states": ["ACTIVE"]}, [2]),
    ({"name": "resnet"}, [1, 3]),
    ({"sort_by": ExperimentSortBy.NAME, "order_by": OrderBy.DESC}, [3, 1, 2]),
    ({"sort_by": ExperimentSortBy.SEARCHER_METRIC_VAL}, [3, 1, 2]),
    ({"sort_by": ExperimentSortBy.SEARCHER_METRIC_VAL, "order_by": OrderBy.DESC}, [1, 3, 2]),
]


def test_experiments_are_chosen_and_sorted(scene: Scene) -> None:
    """Conditions count together; what has no value comes last in both directions."""
    first = scene.experiment(name="ResNet small", about={"labels": ["a"]})
    scene.run(first, losses=[0.5], end="completed")
    scene.experiment(name="bert", job="8", about={"labels": ["a", "b"], "owner": "bob"})
    scene.run(scene.experiment(name="resnet wide", job="9"), losses=[0.1], end="completed", ref="9")
    for conditions, ids in FILTERS:
        found = scene.client.list_experiments(**conditions)
        assert [one.id for one in found] == ids, conditions
    with pytest.raises(ValueError, match="'DONE' is not a state, but one of ACTIVE, "):
        scene.client.list_experiments(states=["DONE"])
    scene.client.experiment(1).archive()
    assert [one.archived for one in scene.client.list_experiments()] == [True, False, False]


def test_experiments_are_sorted_by_their_checkpoints(scene: Scene) -> None:
    """By the bytes or by the number of those that are not deleted; also while one still runs."""
    first, second = scene.experiment(), scene.experiment(2, job="8")
    trial = scene.run(first)
    with RunLog.open(trial.records_path(1)) as records:
        scene.checkpoint("large")
        records.commit({"t": "checkpoint", "uuid": "large", "steps": 1,
                        "resources": {"weights": 50}, "metadata": {}})  # fmt: skip
    for index in range(2):
        scene.run(second, index, losses=[0.5], checkpoint=f"small{index}", ref=f"8_{index}")
    scene.experiment(job="9")
    last = scene.experiment(job="10")
    scene.run(last, losses=[0.5], checkpoint="deleted", ref="10", end="completed")
    assert mark_deleted(last, ["deleted"]).deleted == ("deleted",)
    for by, ids in (
        (ExperimentSortBy.CHECKPOINT_SIZE, [3, 4, 2, 1]),
        (ExperimentSortBy.CHECKPOINT_COUNT, [3, 4, 1, 2]),
    ):
        assert [one.id for one in scene.client.list_experiments(by)] == ids
        falling = scene.client.list_experiments(by, OrderBy.DESC)
        assert [one.id for one in falling] == [*ids[:1:-1], 3, 4]
    for by in ExperimentSortBy:
        assert len(scene.client.list_experiments(by)) == 4


def test_a_listed_experiment_is_read_when_needed(scene: Scene) -> None:
    """What the list knows costs nothing; the rest is there, too."""
    scene.run(scene.experiment(), losses=[0.5], end="completed")
    scene.client.rows()  # from now on it is in the index
    (one,) = scene.client.list_experiments()
    facts = scene.root / "experiments" / "1" / "facts"
    facts.rename(facts.with_name("away"))
    assert (one.name, one.state, one.progress) == ("test", "COMPLETED", 1.0)
    facts.with_name("away").rename(facts)
    assert [trial.state for trial in one.trials()] == ["COMPLETED"]


def test_states_are_text_and_members() -> None:
    """Both comparisons work, and what is not known is unknown."""
    state = ExperimentState("COMPLETED")
    assert state == "COMPLETED" and state is ExperimentState.COMPLETED and f"{state}" == "COMPLETED"
    assert ExperimentState("FROM THE FUTURE") is ExperimentState.UNKNOWN


def _trials(scene: Scene) -> Experiment:
    """Trial 1 has the losses 0.5 and 0.4, trial 2 ends with 0.9, trial 3 waits."""
    experiment = scene.experiment(3)
    scene.run(experiment, 0, losses=[0.5, 0.4], end="completed", ref="7_0")
    scene.run(experiment, 1, losses=[0.3, 0.2, 0.9], ref="7_1", checkpoint="u")
    return scene.client.experiment(1)


TRIAL_ORDERS = [
    (TrialSortBy.ID, OrderBy.DESCENDING, [3, 2, 1]),
    (TrialSortBy.BEST_VALIDATION_METRIC, OrderBy.ASC, [2, 1, 3]),
    (TrialSortBy.LATEST_VALIDATION_METRIC, OrderBy.ASC, [1, 2, 3]),
    (TrialSortBy.BATCHES_PROCESSED, OrderBy.DESC, [2, 1, 3]),
    (TrialSortBy.CHECKPOINT_SIZE, OrderBy.DESC, [2, 1, 3]),
    (TrialSortBy.STATE, OrderBy.ASC, [1, 2, 3]),
]


def test_trials_are_sorted(scene: Scene) -> None:
    """By every kind of value; the trial without a run comes last where it has none."""
    experiment = _trials(scene)
    for by, order, ids in TRIAL_ORDERS:
        assert [trial.id for trial in experiment.list_trials(by, order)] == ids, by
    assert [trial.id for trial in experiment.iter_trials()] == [1, 2, 3]
    for by in TrialSortBy:
        assert len(experiment.list_trials(by)) == 3
    with pytest.raises(ValueError, match="LOUDNESS"):
        experiment.list_trials("LOUDNESS")  # type: ignore[arg-type]


def test_metrics_have_determined_s_names(scene: Scene) -> None:
    """Row by row, and of several trials one after the other."""
    experiment = _trials(scene)
    row = next(iter(experiment.trials()[0].iter_metrics("validation")))
    assert (row.trial_id, row.trial_run_id, row.steps_completed) == (1, 1, 1)
    assert (row.metrics, row.group, row.batch_metrics) == ({"loss": 0.5}, "validation", None)
    determined = client.Determined(root=scene.root)
    rows = list(determined.iter_trials_metrics([2, 1], "validation"))
    assert [row.trial_id for row in rows] == [2, 2, 2, 1, 1]
    assert list(determined.iter_trials_metrics([3], "validation")) == []


def test_a_checkpoint_names_the_run_that_saved_it(scene: Scene) -> None:
    """By the task and the allocation that the code of that run had in its environment."""
    experiment = scene.experiment()
    trial = scene.run(experiment, losses=[0.5], checkpoint="first", end="preempted")
    assert scene.client.checkpoint("first").task_id == "1.1"
    start = trial.open_run(
        {"experiment": 1, "trial": 1, "request_id": "abc", "hparams": {}, "seed": 1, "time": 1.0,
         "job": {}}
    )  # fmt: skip
    with RunLog.open(trial.records_path(2)) as records:
        scene.checkpoint("second")
        records.commit({"t": "checkpoint", "uuid": "second", "steps": 1, "resources": {},
                        "metadata": {}})  # fmt: skip
    environment = run_environment(
        base={}, config=RunConfig(), start=start, experiment_dir=experiment.path, node="n1",
        slot_ids=[0], gpus=[], flag="",
        peers={"container_addrs": ["n1"], "container_rank": 0, "container_slot_counts": [1]},
    )  # fmt: skip
    second = scene.client.checkpoint("second")
    assert second.task_id == environment["DET_TASK_ID"] == "1.abc"
    assert second.allocation_id == environment["DET_ALLOCATION_ID"] == "1.abc.2"
    assert scene.client.checkpoint("first").allocation_id == "1.1.1"


def test_the_time_of_metrics(scene: Scene) -> None:
    """A moment with a time zone."""
    trial = scene.run(scene.experiment())
    with RunLog.open(trial.records_path(2)) as log:
        log.append({"t": "metrics", "group": "mine", "steps": 1, "metrics": {}, "time": 5.0})
    trial.open_run({"hparams": {}, "time": 1.0})
    (row,) = scene.client.trial(1).iter_metrics("mine")
    assert row.end_time == datetime.fromtimestamp(5, UTC)


def test_the_sum_of_a_trial_s_metrics(scene: Scene) -> None:
    """In Determined's form."""
    trial = _trials(scene).first_trial()
    figures = trial.summary_metrics["validation_metrics"]["loss"]
    assert figures == {"count": 2, "sum": 0.9, "mean": 0.45, "min": 0.4, "max": 0.5, "last": 0.4,
                       "type": "number"}  # fmt: skip
    assert (trial.experiment_id, trial.hparams) == (1, {"lr": 0.1, "i": 0})


def test_the_sum_passes_over_what_is_no_number() -> None:
    """And NaN hides no minimum and maximum."""
    values = [3, math.nan, 1.0, "text", True]
    rows = [MetricRow("training", n, {"m": {"x": v}}) for n, v in enumerate(values)]
    figures = summary(rows)["avg_metrics"]["m.x"]
    assert (figures["min"], figures["max"], figures["last"]) == (1.0, 3, 1.0)
    assert figures["count"] == 3
    assert math.isnan(figures["mean"])


def _determined(scene: Scene) -> client.Determined:
    return client.Determined(root=scene.root)


OLDER: list[tuple[str, Callable[[Scene], Any]]] = [
    ("list_trials", lambda scene: scene.client.experiment(1).get_trials()),
    ("iter_metrics", lambda scene: scene.client.trial(1).stream_training_metrics()),
    ("iter_metrics", lambda scene: scene.client.trial(1).stream_validation_metrics()),
    (
        "iter_trials_metrics",
        lambda s: client.Determined(root=s.root).stream_trials_metrics([1], ""),
    ),
    ("steps_completed", lambda scene: next(scene.client.trial(1).iter_metrics()).total_batches),
    ("OrderBy", lambda scene: client.TrialOrderBy),
]


@pytest.mark.parametrize(("new", "use"), OLDER)
def test_older_names_say_the_new_one(scene: Scene, new: str, use: Callable[[Scene], Any]) -> None:
    """The warning names the line of the script."""
    scene.run(scene.experiment(), losses=[0.5], end="completed")
    with pytest.warns(FutureWarning, match=new) as caught:
        use(scene)
    assert caught[0].filename == __file__


def test_waiting_gives_the_state(scene: Scene) -> None:
    """At once where it is over; a paused experiment would never end."""
    scene.run(scene.experiment(), losses=[0.5], end="completed")
    assert scene.client.experiment(1).wait() is ExperimentState.COMPLETED
    scene.experiment(job="8")
    waiting = scene.client.experiment(2)
    waiting.pause()
    with pytest.raises(ValueError, match="experiment 2 is paused"):
        waiting.reload().wait()
    with pytest.raises(ValueError, match="positive"):
        waiting.wait(interval=0)


def test_the_first_trial_is_awaited(scene: Scene) -> None:
    """A custom search has none until its method makes one."""
    experiment, log = scene.search(CUSTOM, workers=1)
    found = scene.client.experiment(experiment.id)

    def created(seconds: float) -> None:
        dialogue = log.catch_up().dialogue
        assert dialogue is not None
        request = "00000000-0000-4000-8000-000000000001"
        create = {"op": "create", "request_id": request, "hparams": {}}
        log.commit([{"e": "operations", "after": dialogue.last, "ops": [create]}])

    assert first_trial(found, sleep=created).id == 1


def test_the_first_trial_may_never_come(scene: Scene) -> None:
    """A search that is stopped before has none."""
    experiment, _ = scene.search(CUSTOM, workers=1)
    stopped = scene.client.experiment(experiment.id)
    stopped.kill()
    with pytest.raises(LifecycleError, match="no trials yet"):
        stopped.reload().await_first_trial(interval=0.01)


def test_what_is_set_is_seen_at_once(scene: Scene) -> None:
    """Attributes follow what was written, and only that."""
    scene.run(scene.experiment(), end="completed")
    experiment = scene.client.experiment(1)
    experiment.set_name("new")
    experiment.set_labels({"b", "a"})
    experiment.add_label("c")
    experiment.set_description("text")
    experiment.set_notes("more\ntext")
    assert (experiment.name, experiment.labels) == ("new", {"a", "b", "c"})
    assert (experiment.description, experiment.notes) == ("text", "more\ntext")
    with pytest.raises(LifecycleError):
        experiment.set_name("two\nlines")
    assert experiment.name == "new"


LINES = ["0: one", "1: two", "of the runner"]


def test_logs_are_chosen(scene: Scene) -> None:
    """By rank, time and text, from the start or the end."""
    trial = scene.run(
        scene.experiment(), end="completed", log=["0: one", "1: two", "of the runner"]
    )
    say(trial, 1, ["0: three"], second=30)
    found = scene.client.trial(1)

    def texts(*args: Any, **chosen: Any) -> list[str]:
        return [line.split("|| ")[1] for line in found.logs(*args, **chosen)]

    assert texts() == texts(follow=True) == ["one", "two", "of the runner", "three"]
    assert texts(head=1) == ["one"] and texts(tail=2) == ["of the runner", "three"]
    assert texts(rank_ids=[0]) == ["one", "three"] and texts(search_text="w") == ["two"]
    assert texts(timestamp_after="2026-11-21T04:46:10Z") == ["three"]
    moment = datetime(2026, 11, 21, 4, 46, 10, tzinfo=UTC).timestamp()
    assert texts(timestamp_before=int(moment)) == ["one", "two", "of the runner"]
    assert list(found.iter_logs(tail=1)) == list(found.logs(tail=1))
    assert texts(min_level="INFO") == texts() and texts(min_level=client.LogLevel.ERROR) == []
    assert texts(sources=["detslurm"]) == []
    for wrong in ({"sources": ["agent"]}, {"min_level": "LOUD"},
                  {"timestamp_after": "yesterday"}, {"timestamp_before": 1e99}, {"stdtypes": ["x"]},
                  {"head": 1, "tail": 1}, {"head": 1, "follow": True}):  # fmt: skip
        with pytest.raises(ValueError, match=r"neither|can't be|is not a level"):
            found.logs(**wrong)


def test_methods_take_determined_s_arguments() -> None:
    """By position and by name, for scripts that are not rewritten."""
    expected: dict[Callable[..., Any], list[str]] = {
        client.Determined.create_experiment: ["config", "model_dir", "includes"],
        client.Determined.list_experiments: ["sort_by", "order_by", "experiment_ids", "labels",
                                             "users", "states", "name"],
        client.Experiment.list_trials: ["sort_by", "order_by"],
        client.Experiment.iter_trials: ["sort_by", "order_by", "limit"],
        client.Experiment.await_first_trial: ["interval"],
        client.Experiment.wait: ["interval"],
        client.Trial.iter_metrics: ["group"],
        client.Experiment.set_description: ["description"],
        client.Experiment.set_notes: ["notes"],
        client.Model.register_version: ["checkpoint_uuid"],
        client.Determined.list_users: ["active"],
    }  # fmt: skip
    for method, names in expected.items():
        assert list(inspect.signature(method).parameters)[1 : len(names) + 1] == names


def test_an_experiment_without_code(shared: Scene) -> None:
    """A configuration alone is submitted with nothing of the working directory."""
    config = {
        "name": "bare",
        "entrypoint": "echo hello",
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
        "slurm": {"slot_type": "cpu"},
    }
    determined = client.Determined(warn=shared.warnings.append)
    determined.queues = shared.client.queues
    experiment = determined.create_experiment(config, project_id="vision/digits")
    assert experiment.name == "bare"
    assert (experiment.view.workspace, experiment.view.project) == ("vision", "digits")
    assert list((experiment.path / "code").iterdir()) == []


def test_a_text_is_no_list_of_texts(scene: Scene) -> None:
    """Its characters would be taken one by one: with a `*` among them for all files."""
    experiment = scene.experiment()
    scene.run(experiment, losses=[0.5], checkpoint="c1", end="completed")
    files = scene.checkpoints / "c1"
    client = scene.client
    (checkpoint,) = client.experiment(1).list_checkpoints()
    wrongs: tuple[Callable[[], object], ...] = (
        lambda: checkpoint.remove_files("optimizer*"),
        lambda: checkpoint.remove_metadata("steps_completed"),
        lambda: client.list_experiments(labels="a"),
        lambda: client.list_experiments(users="alice"),
        lambda: client.list_experiments(states="COMPLETED"),
        lambda: client.experiment(1).fork("name=b"),
        lambda: client.submit({"name": "a"}, overrides="name=b"),
    )
    for wrong in wrongs:
        with pytest.raises(TypeError, match="must be a list, not '"):
            wrong()
    assert list(files.iterdir())


def test_no_duration_is_negative() -> None:
    """Clocks of a node and of the machine where one looks differ."""
    assert duration(time.time() + 300, None) == duration(5.0, 3.0) == 0.0
    assert duration(1.0, 3.5) == 2.5
    assert duration(None, None) is None


def test_changes_at_the_same_time_all_count(scene: Scene) -> None:
    """Of labels, and of the numbers of a policy: each process changes only what it names."""
    scene.run(scene.experiment(), end="completed")
    policy = ("save_experiment_best", "save_trial_best", "save_trial_latest")

    def change(worker: int) -> None:
        one = scene.client.experiment(1)
        for number in range(5):
            one.add_label(f"{worker}.{number}")
            one.set_gc_policy(**{policy[worker]: 10 * worker + number})

    race(3, change)
    one = scene.client.experiment(1)
    assert sorted(one.labels) == [f"{w}.{n}" for w in range(3) for n in range(5)]
    assert [getattr(one.gc_policy, name) for name in policy] == [4, 14, 24]


def test_workspaces_are_the_folders_of_experiments(
    shared: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first experiment makes a folder; Determined's functions and keywords find it."""
    determined = client.Determined()
    determined.queues = shared.client.queues
    monkeypatch.setattr(client, "_shared", determined)
    one = client.get_experiment(shared.experiment(name="one").id)
    folder = client.create_workspace("vision").create_project("digits", description="x")
    with pytest.raises(NotFound, match="no experiment is in a workspace 'vision'"):
        client.get_workspace("vision")
    client.delete_workspace("vision")
    one.move_to_project(folder.workspace, folder.name)
    one.set_description(description="d")
    one.set_notes(notes="n")
    assert [w.name for w in client.list_workspaces()] == ["vision"]
    project = client.get_workspace("vision").get_project("digits")
    assert isinstance(project, client.Project) and project.n_experiments == 1
    assert [found.id for found in project.list_experiments()] == [one.id]
    with pytest.raises(LifecycleError, match="vision still has experiments"):
        client.delete_workspace("vision")
    with pytest.raises(LifecycleError, match="vision/digits still has experiments"):
        client.get_workspace("vision").delete_project("digits")
    assert client.whoami() in client.list_users(active=True)


def test_mistyped_arguments_beside_a_plan(scene: Scene, tmp_path: Path) -> None:
    """They are refused, or a `paused` that is none would start the jobs."""
    code = tmp_path / "code"
    code.mkdir()
    searcher = {"name": "single", "metric": "loss"}
    plan = scene.client.plan({"entrypoint": "true", "searcher": searcher}, code)
    with pytest.raises(TypeError, match="pausd"):
        scene.client.submit(plan, pausd=True)  # type: ignore[call-arg]
    assert not scene.client.rows()
