"""Experiments that come from others, as far as it shows in the store."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import yaml

from detslurm.config.secret_names import MASK
from detslurm.sdk import LifecycleError, SubmitError
from detslurm.sdk.submission import submit as submission
from detslurm.sdk.submission.derived_plan import left_out
from detslurm.searcher import Search
from detslurm.store import StoreError, fold_facts
from detslurm.store.checkpoint_facts import mark_deleted
from detslurm.store.history import read_continued
from detslurm.store.reading import trial_metrics
from detslurm.store.search_records import add_trials, end_search
from tests.sdk.scenes import CUSTOM, SEARCH, YAML, Scene

MORE = ["searcher.max_length=20"]


@pytest.fixture
def parent(scene: Scene) -> int:
    """A finished grid: one trial with a checkpoint after a validation, one without."""
    experiment = scene.experiment(2)
    scene.run(experiment, 0, losses=[3.0, 2.0], checkpoint="kept", end="completed")
    scene.run(experiment, 1, losses=[5.0], end="error")
    return experiment.id


def test_a_trial_alone_goes_on(scene: Scene, parent: int) -> None:
    """Its history lies in the store before any job begins, the checkpoint is protected as long as
    the new experiment exists, and secrets are where they were."""
    parent_dir = scene.store.experiment(parent)
    trial = parent_dir.created().first_trial
    experiment = scene.client.experiment(parent)
    done = experiment.continue_(MORE, trial_id=trial)
    made = scene.store.experiment(done.id)
    created = made.created()
    assert (created.parent, created.origin, created.sources) == (parent, "continue", (parent,))
    begins = read_continued(made.trial(done.submission.first_trial))
    assert begins is not None
    assert (begins.uuid, begins.steps, begins.trial, begins.seed) == ("kept", 2, trial, 1)
    assert made.config()["data"]["secrets"] == {"token": "hush-hush"}
    assert made.config()["searcher"]["max_length"] == 20
    assert made.config()["searcher"]["name"] == "single"
    assert (made.path / "code" / "train.py").read_text() == "print('hello')\n"
    assert scene.client.stored(made.id).view.parent == parent

    refused = mark_deleted(parent_dir, ["kept"])
    assert refused.deleted == () and refused.kept == {"kept": f"experiment {made.id}"}
    scene.client.stored(made.id).kill()
    scene.client.experiment(made.id).delete()
    assert mark_deleted(parent_dir, ["kept"]).deleted == ("kept",)


def test_the_curve_begins_with_what_was_before(scene: Scene, parent: int) -> None:
    """Up to the checkpoint, also in the best validation; nothing of it counts as a run."""
    trial = scene.store.experiment(parent).created().first_trial
    done = scene.client.experiment(parent).continue_(MORE, trial_id=trial)
    made = scene.store.experiment(done.id)
    begins = read_continued(made.trial(done.submission.first_trial))
    assert begins is not None
    directory = made.trial(done.submission.first_trial)
    start = {"hparams": {}, "seed": 1, "time": 1.0, "job": {"cluster": "slurm", "ref": "7"},
             "resume": {"uuid": "kept", "steps": 2}, "continued": begins.as_claimed()}  # fmt: skip
    directory.open_run(start)
    view = scene.client.stored(made.id).first_trial().view
    assert view.run_count == 1 and view.continues == trial and view.steps == 2
    assert view.best_validation is not None and view.best_validation.value == 2.0
    rows = trial_metrics(directory)
    assert [(row.steps, row.run, row.metrics["loss"]) for row in rows] == [(1, 0, 3.0), (2, 0, 2.0)]


def test_what_can_not_go_on(scene: Scene, parent: int) -> None:
    """Each refusal says what to do instead, and leaves nothing."""
    running = scene.experiment(job="8")
    search, _ = scene.search()
    custom = scene.experiment(1, text=CUSTOM, about={"runner": "me", "search": True})
    for one in (search, custom):
        scene.client.stored(one.id).kill()
    for number, words, overrides in [
        (running.id, "activate", MORE),
        (parent, "max_length", []),
        (parent, "--trial", MORE),  # its trials had no hyperparameters of this grid
        (
            search.id,
            r"(?s)searcher\.divisor.*fork 3.*hyperparameters.*seed",
            [
                "searcher.divisor=2",
                "hyperparameters.lr.vals=[1]",
                "reproducibility.experiment_seed=5",
            ],
        ),
        (search.id, "max_length: 8 is less than the 9", ["searcher.max_length.batches=8"]),
        (search.id, "max_trials: 5 is less than the 6", ["searcher.max_trials=5"]),
        (
            search.id,
            "searcher.name",
            [
                "searcher={name: pbt, population_size: 2, num_rounds: 2,"
                " length_per_round: 9, metric: loss}"
            ],
        ),
        (custom.id, "search method runs in a script of yours", ["searcher.unit=batches"]),
    ]:
        with pytest.raises(SubmitError, match=words):
            scene.client.experiment(number).continue_(overrides)
    trial = scene.store.experiment(parent).created().first_trial
    with pytest.raises(SubmitError, match="rerun"):
        scene.client.experiment(parent).continue_(MORE, trial_id=trial + 1)
    with pytest.raises(SubmitError, match="not one of"):
        scene.client.experiment(parent).continue_(MORE, trial_id=99)
    visible = [row.id for row in scene.client.list_experiments()]
    assert visible == [parent, running.id, search.id, custom.id]


@pytest.mark.parametrize(
    ("searcher", "length"),
    [
        ("{name: optuna, max_trials: 2, time_metric: batches, pruner: median}", None),
        ("{name: optuna, max_trials: 2, max_length: 7}", 7),
        ("{name: pbt, population_size: 2, num_rounds: 3, length_per_round: {batches: 5}}",
         {"batches": 15}),
        ("{name: async_halving, num_rungs: 2, max_trials: 2, time_metric: epochs, max_time: 9}",
         {"epochs": 9}),
    ],
)  # fmt: skip
def test_a_trial_of_a_search_goes_on_alone(scene: Scene, searcher: str, length: object) -> None:
    """As long as it would have trained; where only its code knows, that decides."""
    given = searcher.replace("name", "metric: loss, name", 1)
    text = YAML.replace("{name: grid, metric: loss, max_length: 10}", given)
    experiment, log = scene.search(text, workers=1, trials=2)
    scene.works(experiment, log, "7", losses=[0.5], checkpoint="c", end="completed")
    scene.client.stored(experiment.id).kill()
    done = scene.client.experiment(experiment.id).continue_(trial_id=1)
    found = scene.store.experiment(done.id).config()["searcher"]
    assert (found["name"], found.get("max_length")) == ("single", length)


def test_a_trial_of_a_custom_search_needs_a_length(scene: Scene) -> None:
    """Its method alone knew it, and is not asked any more."""
    experiment = scene.experiment(1, text=CUSTOM, about={"runner": "me"})
    scene.run(experiment, losses=[0.5], checkpoint="c", end="completed")
    with pytest.raises(SubmitError, match=r"trial 1 is to, such as --config searcher\.max_length"):
        scene.client.experiment(experiment.id).continue_(trial_id=1)
    scene.client.experiment(experiment.id).continue_(MORE, trial_id=1)


def test_a_killed_search_goes_on(scene: Scene) -> None:
    """Trials at work are first in the queue, with their checkpoints; failed ones stay failed. What
    they reported is there before any job begins, and the log is read once for all."""
    experiment, log = scene.search()
    scene.works(experiment, log, "7_0", losses=[3.0, 2.0], checkpoint="kept", end="killed")
    scene.works(experiment, log, "7_1", losses=[5.0], end="error", reason="it broke")
    log.commit([{"e": "run_ended", "trial": 1, "worker": "7_1", "outcome": "error"}])
    scene.client.stored(experiment.id).kill()
    scene.queue.jobs.clear()
    done = scene.client.experiment(experiment.id).continue_(["searcher.max_trials=8"])
    made = scene.store.experiment(done.id)
    assert (made.created().trials, made.created().sources) == (8, (experiment.id,))
    search = scene.client.stored(done.id)._snapshot.search
    assert search is not None
    assert search.state.waiting()[0] == 0 and search.state.brackets[0].max_trials == 8
    assert (made.search / "state.bin").exists()
    begins = read_continued(made.trial(done.submission.first_trial))
    assert begins is not None and (begins.uuid, begins.steps, begins.trial) == ("kept", 2, 1)
    first, second, *_ = scene.client.stored(done.id).trials()
    assert (first.view.state, second.view.state) == ("QUEUED", "ERROR")
    assert second.view.end_reason == f"in experiment {experiment.id}: it broke"
    best = [trial.view.best_validation for trial in (first, second)]
    assert [one.value for one in best if one is not None] == [2.0, 5.0]
    assert "from scratch" not in "".join(scene.warnings)


def test_a_search_that_its_rule_ended_goes_on_without(scene: Scene) -> None:
    """Trials that the rule took away from their workers are not over, and go on."""
    rule = "max_trials: 6, stop: {target: 1.0}"
    experiment, log = scene.search(SEARCH.replace("max_trials: 6", rule))
    scene.works(experiment, log, "7_0", losses=[3.0, 2.0], checkpoint="kept", end="completed")
    scene.works(experiment, log, "7_1", losses=[0.5], checkpoint="best", end="completed")
    log.commit([{"e": "validated", "trial": 1, "length": 3, "metric": 0.5}])
    for worker in (0, 1):
        log.commit([{"e": "run_ended", "trial": worker, "worker": f"7_{worker}",
                     "outcome": "stopped"}])  # fmt: skip
    assert log.state.done
    end_search(experiment, [trial.outcome for trial in log.state.trials], "completed")
    scene.queue.jobs.clear()
    with pytest.raises(SubmitError, match="meet this rule already"):
        scene.client.experiment(experiment.id).continue_(["searcher.max_trials=8"])
    done = scene.client.experiment(experiment.id).continue_(["searcher.stop=null"])
    search = scene.client.stored(done.id)._snapshot.search
    assert search is not None and search.state.waiting() == [0, 2, 3]
    assert search.state.trials[1].status == "paused"


def test_a_damaged_checkpoint_is_named(scene: Scene, parent: int) -> None:
    """Instead of a trial that ends with an error; once it is deleted, there is none."""
    (scene.checkpoints / "kept" / "weights").unlink()
    with pytest.raises(SubmitError, match=r"checkpoint kept is damaged, missing: weights; trial 1"):
        scene.client.experiment(parent).continue_(MORE)
    scene.client.checkpoint("kept").delete()
    with pytest.raises(SubmitError, match="has no checkpoint to go on from"):
        scene.client.experiment(parent).continue_(MORE)


def test_a_checkpoint_without_its_files_is_named(scene: Scene, parent: int) -> None:
    """Nobody has deleted it: perhaps another file system is to be mounted there."""
    trial = scene.store.experiment(parent).created().first_trial
    (scene.checkpoints / "kept").rename(scene.checkpoints / "elsewhere")
    said = f"go on from: checkpoint kept of trial {trial} has no files under {scene.checkpoints}"
    for alone in (None, trial):
        with pytest.raises(SubmitError, match=said) as refused:
            scene.client.experiment(parent).continue_(MORE, trial_id=alone)
        assert "(is that file system mounted?)" in str(refused.value)
        assert f"`detslurm experiment rerun {parent}`" in str(refused.value)


def test_a_source_that_was_deleted_meanwhile(
    scene: Scene, parent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the plan and the submission: nothing is created, nothing stays protected."""
    from detslurm.sdk.submission import submit as module

    create = module._create
    directory = scene.store.experiment(parent)

    def late(*args: object) -> object:
        assert mark_deleted(directory, ["kept"]).deleted == ("kept",)
        return create(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_create", late)
    trial = directory.created().first_trial
    with pytest.raises(StoreError, match="has been deleted"):
        scene.client.experiment(parent).continue_(MORE, trial_id=trial)
    assert [row.id for row in scene.client.list_experiments()] == [parent]
    assert fold_facts(directory).checkpoints.kept == {}


def test_forks_and_reruns(scene: Scene, parent: int, tmp_path: Path) -> None:
    """The same configuration, seeds and code, but for what is changed; names as they are now."""
    scene.client.stored(parent).set_name("renamed")
    config = scene.store.experiment(parent).config()
    again = scene.client.stored(parent).rerun()
    made = scene.store.experiment(again.id)
    storage = {**made.config()["checkpoint_storage"], **config["checkpoint_storage"]}
    assert made.config() == {**config, "name": "renamed", "checkpoint_storage": storage}
    assert (made.created().origin, made.created().parent) == ("rerun", parent)

    other = tmp_path / "code"
    other.mkdir()
    (other / "train.py").write_text("print('other')\n")
    changed = tmp_path / "more.yaml"
    changed.write_text("hyperparameters: {lr: 0.5}\nmax_restarts: 1\n")
    fork = scene.client.stored(parent).fork(
        ["max_restarts=2"], config=changed, context_dir=other, from_checkpoint="kept"
    )
    made = scene.store.experiment(fork.id)
    found = made.config()
    assert found["hyperparameters"]["lr"]["val"] == 0.5 and found["max_restarts"] == 2
    assert found["searcher"]["source_checkpoint_uuid"] == "kept"
    assert (made.path / "code" / "train.py").read_text() == "print('other')\n"
    assert (
        made.created().origin == "fork"
        and read_continued(made.trial(fork.submission.first_trial)) is None
    )


def test_a_fork_with_another_length(scene: Scene) -> None:
    """What newer searches call it, which the configuration was completed with, follows."""
    search, _ = scene.search()
    fork = scene.client.stored(search.id).fork(["searcher.max_length={epochs: 3}"])
    searcher = scene.store.experiment(fork.id).config()["searcher"]
    assert searcher["max_length"] == {"epochs": 3}
    assert (searcher["time_metric"], searcher["max_time"]) == ("epochs", 3)


def test_a_fork_on_more_slots(scene: Scene, tmp_path: Path) -> None:
    """How many slots a single node has to have is not what the user has set."""
    (tmp_path / "train.py").touch()
    config = yaml.safe_load(YAML) | {"resources": {"is_single_node": True, "slots_per_trial": 2}}
    one = scene.client.submit(config, tmp_path)
    fork = scene.client.stored(one.id).fork(["resources.slots_per_trial=4"])
    assert scene.store.experiment(fork.id).config()["slurm"]["slots_per_node"] == 4


def single_in(scene: Scene, **searcher: Any) -> dict[str, Any]:
    """The configuration of a single trial with its checkpoints in the scene's store."""
    return {
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss", "max_length": 3, **searcher},
        "checkpoint_storage": {"type": "shared_fs", "host_path": str(scene.root)},
        "slurm": {"slot_type": "cpu"},
    }


def test_from_a_checkpoint(scene: Scene, parent: int, tmp_path: Path) -> None:
    """By the beginning of its id; it is protected as long as the new experiment exists."""
    (tmp_path / "train.py").write_text("")
    config = single_in(scene)
    for wrong in ("kep", "nothing-begins-so"):
        with pytest.raises(SubmitError, match="there is no checkpoint"):
            scene.client.submit(config, tmp_path, from_checkpoint=wrong)
    done = scene.client.submit(config, tmp_path, from_checkpoint="kept")
    made = scene.store.experiment(done.id)
    assert made.config()["searcher"]["source_checkpoint_uuid"] == "kept"
    assert made.created().sources == (parent,)
    refused = mark_deleted(scene.store.experiment(parent), ["kept"])
    assert refused.kept == {"kept": f"experiment {made.id}"}


def test_a_move_counts_for_what_comes_from_it(scene: Scene, parent: int) -> None:
    """Its project as it is now, not as the configuration said; `--config` may say another one."""
    experiment = scene.client.stored(parent)
    experiment.move("vision", "digits")
    again = scene.client.stored(experiment.rerun().id)
    assert (again.workspace, again.project) == ("vision", "digits")
    other = scene.client.stored(experiment.fork(["project=letters"]).id)
    assert (other.workspace, other.project) == ("vision", "letters")


def test_a_warm_start_from_a_trial_that_still_runs(scene: Scene, tmp_path: Path) -> None:
    """It means the checkpoint that is the latest one at the submission, which is protected from
    then on; what is saved later is not."""
    source = scene.experiment()
    trial = scene.run(source, losses=[3.0], checkpoint="early", end="preempted")
    (tmp_path / "train.py").write_text("")
    config = single_in(scene, source_trial_id=trial.id)
    done = scene.client.submit(config, tmp_path)
    resume = {"uuid": "early", "steps": 1}
    scene.run(source, losses=[2.0], checkpoint="late", resume=resume, end="completed")
    created = scene.store.experiment(done.id).created()
    assert created.source_checkpoint == "early" and created.sources == (source.id,)
    refused = mark_deleted(source, ["early", "late"])
    assert refused.deleted == ("late",)
    assert refused.kept == {"early": f"experiment {done.id}"}


def killed_at(place: str, act: Callable[[], object], *, after: bool = False) -> None:
    """Do it in a process that is killed when it comes to a function, or when it has called it."""
    real = resolve_name(place)

    def killed(*args: Any, **kwargs: Any) -> None:
        if after:
            real(*args, **kwargs)
        os.kill(os.getpid(), 9)

    child = os.fork()
    if child == 0:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, killed)
            act()
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 9


def interrupted(*_: object, **__: object) -> None:
    """Stand in for a function in which Ctrl-C arrives."""
    raise KeyboardInterrupt


def test_a_submission_that_is_killed_protects_nothing(scene: Scene, parent: int) -> None:
    """Its experiment never was: what it was to begin with can be deleted afterwards."""
    directory = scene.store.experiment(parent)
    trial = directory.created().first_trial
    killed_at(
        "detslurm.store.ExperimentDir.create",
        lambda: scene.client.experiment(parent).continue_(MORE, trial_id=trial),
    )
    assert fold_facts(directory).checkpoints.protection("kept") is not None
    scene.client.gc()
    assert fold_facts(directory).checkpoints.protection("kept") is None
    assert mark_deleted(directory, ["kept"]).deleted == ("kept",)


def test_a_submission_that_fails_protects_nothing(
    scene: Scene, parent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, although the process that submitted lives on."""
    monkeypatch.setattr("detslurm.store.ExperimentDir.create", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scene.client.experiment(parent).continue_(MORE, trial_id=1)
    directory = scene.store.experiment(parent)
    assert fold_facts(directory).checkpoints.protection("kept") is None


@pytest.mark.parametrize(
    ("place", "after"),
    [
        ("store.ExperimentDir.create", True),
        ("sdk.submission.submit.submit_as_many", False),
        ("sdk.submission.submit.submitted_fact", False),
    ],
)
def test_a_submission_that_is_killed_before_a_job_is_recorded(
    scene: Scene, parent: int, place: str, after: bool
) -> None:
    """Lists say what to do about it; `kill` and `delete` do it, and what it was to begin with is
    free again. Until then it is protected: a job may have been queued."""
    directory = scene.store.experiment(parent)
    trial = directory.created().first_trial
    killed_at(
        f"detslurm.{place}",
        lambda: scene.client.experiment(parent).continue_(MORE, trial_id=trial),
        after=after,
    )
    number = parent + 1
    assert [row.state for row in scene.client.rows()] == ["COMPLETED", "ACTIVE"]
    (said,) = scene.warnings
    assert "no job was queued for it" in said and f"`detslurm e kill {number}`" in said
    assert mark_deleted(directory, ["kept"]).deleted == ()
    child = scene.client.experiment(number)
    assert child.message is not None and child.message in said
    scene.warnings.clear()
    child.kill()
    assert scene.client.experiment(number).state == "CANCELED" and not scene.warnings
    scene.client.experiment(number).delete()
    assert [row.id for row in scene.client.rows()] == [parent]
    assert mark_deleted(directory, ["kept"]).deleted == ("kept",)


def test_a_search_whose_submission_is_killed_goes_on_with_the_jobs_that_it_has(
    scene: Scene, tmp_path: Path
) -> None:
    """It lacks the standby job alone."""
    (tmp_path / "train.py").write_text("")
    killed_at(
        "detslurm.sdk.submission.submit._submit_standby",
        lambda: scene.client.submit(yaml.safe_load(SEARCH), tmp_path),
    )
    assert [row.state for row in scene.client.rows()] == ["ACTIVE"]
    assert scene.client.experiment(1).view.jobs and not any("queued" in w for w in scene.warnings)


@pytest.mark.parametrize("search", [False, True])
def test_a_submission_that_broke_off_before_its_first_job(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: bool
) -> None:
    """It has nothing that could be submitted again: `activate` says so, and it can be deleted."""
    create = submission._create

    def created_and_interrupted(*args: Any) -> None:
        create(*args)
        raise KeyboardInterrupt

    (tmp_path / "train.py").write_text("")
    config = yaml.safe_load(SEARCH if search else YAML)
    with monkeypatch.context() as patch:
        patch.setattr(submission, "_create", created_and_interrupted)
        with pytest.raises(KeyboardInterrupt):
            scene.client.submit(config, tmp_path)
    with pytest.raises(LifecycleError, match="its submission broke off"):
        scene.client.experiment(1).activate()
    scene.client.experiment(1).kill()
    scene.client.experiment(1).delete()


def test_a_fork_of_an_import_names_what_the_bundle_left_out(scene: Scene, tmp_path: Path) -> None:
    """The code would get asterisks, unless the values are given."""
    made = scene.experiment(1)
    scene.run(made, 0, losses=[3.0], end="completed")
    scene.client.experiment(made.id).bundle(tmp_path / "a.tar")
    there = scene.client.import_bundle(tmp_path / "a.tar").experiment_id
    imported = scene.client.experiment(there)
    imported.fork()
    (warning,) = (text for text in scene.warnings if "asterisks" in text)
    assert "data.secrets.token" in warning
    imported.fork(["data.secrets.token=hush-hush"])
    assert sum("asterisks" in text for text in scene.warnings) == 1
    variables = ["A=********", "B=1", "A=2"]
    assert not left_out({"environment": {"environment_variables": {"cpu": variables}}})
    assert left_out({"environment": {"environment_variables": {"cpu": [*variables, f"B={MASK}"]}}})


def test_secrets_of_a_search_that_goes_on(scene: Scene) -> None:
    """Its log has none, although a point that is tried first may hold some. Others may take their
    place, as after an import without them: they decide nothing."""
    choice = "{type: choice, vals: [none, {api_key: hush-key}]}"
    points = "[{data: {api_key: hush-key}}]"
    text = SEARCH.replace("max_trials: 6", f"max_trials: 6, first: {points}")
    text = text.replace("hyperparameters: {", f"hyperparameters: {{data: {choice}, ")
    experiment, _ = scene.search(text)
    scene.client.stored(experiment.id).kill()
    scene.queue.jobs.clear()
    changes = [f"hyperparameters.data={choice}", f"searcher.first={points}"]
    changes = [change.replace("hush-key", "hush-new") for change in changes]
    done = scene.client.experiment(experiment.id).continue_(["searcher.max_trials=8", *changes])
    made = scene.store.experiment(done.id)
    assert [path for path in made.search.iterdir() if b"hush" in path.read_bytes()] == []
    search = scene.client.stored(done.id)._snapshot.search
    assert search is not None
    plan = Search(made.config()).plan(search.state, 0)
    assert plan.hparams["data"] == {"api_key": "hush-new"}


def test_the_best_checkpoint_of_a_search_that_goes_on(scene: Scene) -> None:
    """It may be one that a trial saved in an experiment before."""
    experiment, log = scene.search()
    scene.works(experiment, log, "7_0", losses=[3.0, 0.5], checkpoint="best", end="completed")
    first = experiment.id
    for _ in range(2):
        scene.client.stored(experiment.id).kill()
        scene.queue.jobs.clear()
        done = scene.client.experiment(experiment.id).continue_(["searcher.max_trials=8"])
        experiment = scene.store.experiment(done.id)
    scene.run(experiment, 1, losses=[2.0], checkpoint="worse", end="completed")
    found = scene.client.stored(experiment.id)
    assert [one.uuid for one in found.checkpoints()] == ["worse"]
    assert [(one.uuid, one.experiment_id) for one in found.top_n_checkpoints(2)] == [
        ("best", first), ("worse", experiment.id)
    ]  # fmt: skip
    assert found.top_checkpoint().trial_id == 1


def test_a_search_does_not_go_on_with_the_trials_of_others(scene: Scene) -> None:
    """With a lost fact that gave trials their ids, results would be those of other trials."""
    experiment, _ = scene.search(trials=2)
    for _ in range(2):
        add_trials(experiment, fold_facts(experiment))
    lost = fold_facts(experiment).count - 1
    scene.client.stored(experiment.id).kill()
    Path(experiment.log.path_text(lost)).unlink()
    scene.queue.jobs.clear()
    with pytest.raises(StoreError, match=r"which of its trials is which is unknown"):
        scene.client.experiment(experiment.id).continue_(["searcher.max_trials=8"])
