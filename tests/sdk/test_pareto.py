"""A search with several objectives: the best trials and checkpoints are a Pareto front."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from detslurm.sdk import Experiment, LifecycleError
from detslurm.sdk.checkpoints.catalog import of_snapshot
from detslurm.sdk.experiments.snapshot import read
from detslurm.store import ExperimentDir
from detslurm.store.best_validation import BestValidation
from detslurm.store.checkpoint_links import links_of
from detslurm.store.objectives import ObjectiveRecord, SeveralObjectives
from tests.sdk.scenes import YAML, Scene

SEVERAL = SeveralObjectives(
    (ObjectiveRecord("loss"), ObjectiveRecord("speed", smaller_is_better=False)),
    {"memory": "<= 40"},
)
TEXT = YAML.replace(
    "metric: loss,",
    "metrics: [{name: loss}, {name: speed, smaller_is_better: false}],"
    ' constraints: {memory: "<= 40"},',
)
# Of each trial: its losses, its speed and its memory.
TRIALS = [
    ([0.9, 0.5], 3.0, 10.0),  # dominated by the fourth
    ([0.7, 0.4], 1.0, 10.0),  # the best loss
    ([0.1], 9.0, 50.0),  # breaks the constraint
    ([0.5], 4.0, 40.0),
    ([math.nan], 99.0, 1.0),  # has no result
    ([0.8], 7.0, 0.0),  # the best speed
]


def searched(scene: Scene) -> ExperimentDir:
    """An experiment whose trials have these results, each with a checkpoint."""
    about = {"objectives": SEVERAL}
    experiment = scene.experiment(len(TRIALS), text=TEXT, about=about)
    for index, (losses, speed, memory) in enumerate(TRIALS):
        others = {"speed": speed, "memory": memory}
        scene.run(
            experiment, index, losses=losses, others=others, checkpoint=f"c{index}", end="completed"
        )
    return experiment


def found(scene: Scene) -> Experiment:
    return scene.client.experiment(searched(scene).id)


def test_the_front_of_trials(scene: Scene) -> None:
    """None is beaten by another; the one best trial is the best by the first metric of them."""
    experiment = found(scene)
    assert [trial.id for trial in experiment.pareto_front()] == [2, 4, 6]
    assert (experiment.view.best_trial, experiment.view.best_value) == (2, 0.4)
    assert experiment.row.objectives == SEVERAL
    directory = scene.store.experiment(experiment.id)
    assert BestValidation(directory).value() == 0.4


def test_the_front_of_checkpoints(scene: Scene) -> None:
    """`top_checkpoint` promises one: by the first metric, of those that keep all constraints."""
    experiment = found(scene)
    assert [one.uuid for one in experiment.pareto_checkpoints()] == ["c1", "c3", "c5"]
    assert experiment.top_checkpoint().uuid == "c1"
    ranked = [one.uuid for one in experiment.top_n_checkpoints(9)]
    assert ranked == ["c1", "c3", "c5", "c0", "c2"]
    listed = [one.uuid for one in experiment.list_checkpoints()]
    assert listed == [*ranked, "c4"]
    assert experiment.top_checkpoint("loss", smaller_is_better=True).uuid == "c2"
    assert [one.uuid for one in experiment.trials()[0].pareto_checkpoints()] == ["c0"]
    with pytest.raises(LifecycleError, match="trial 3 has no checkpoint that keeps all"):
        experiment.trials()[2].pareto_checkpoints()
    with pytest.raises(LifecycleError, match="validation of loss, speed, memory at its step"):
        experiment.trials()[4].pareto_checkpoints()


def test_a_single_metric_has_a_front_of_its_best(scene: Scene) -> None:
    """All trials and checkpoints with the best value."""
    directory = scene.experiment(3)
    for index, loss in enumerate((0.5, 0.4, 0.4)):
        scene.run(directory, index, losses=[loss], checkpoint=f"c{index}", end="completed")
    experiment = scene.client.experiment(directory.id)
    assert [trial.id for trial in experiment.pareto_front()] == [2, 3]
    assert [one.uuid for one in experiment.pareto_checkpoints()] == ["c1", "c2"]


def test_exports_mark_the_front(scene: Scene, tmp_path: Path) -> None:
    """CSV and data frames have each objective, the front and whether constraints are kept."""
    experiment = found(scene)
    experiment.export("csv", tmp_path)
    with (tmp_path / f"experiment-{experiment.id}" / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["front"] for row in rows] == ["false", "true", "false", "true", "false", "true"]
    assert [row["feasible"] for row in rows] == ["true", "true", "false", "true", "", "true"]
    assert [row["best_speed"] for row in rows] == ["3.0", "1.0", "9.0", "4.0", "", "7.0"]
    frame = experiment.trials_frame()
    assert list(frame.index[frame["front"]]) == [2, 4, 6]
    assert frame.loc[3, "best_memory"] == 50.0


def test_garbage_collection_keeps_the_front(scene: Scene) -> None:
    """Whatever the policy; the link `best` leads to the one best checkpoint."""
    experiment = found(scene)
    saved = of_snapshot(read(scene.store.experiment(experiment.id)))
    assert saved.objectives == SEVERAL
    assert links_of(saved.rows, saved).best == "c1"
    nothing = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 0}
    gone = experiment.set_gc_policy(**nothing)
    assert {one.uuid for one in gone.deleted} == {"c0", "c2", "c4"}
    assert {path.name for path in scene.checkpoints.iterdir()} == {"c1", "c3", "c5"}


def test_the_report_has_the_front(scene: Scene) -> None:
    """The objectives, and where each trial stands; a single metric adds nothing."""
    (part,) = found(scene).snapshot(curves=False)["experiments"]
    assert part["objectives"] == [
        {"name": "loss", "smaller_is_better": True},
        {"name": "speed", "smaller_is_better": False},
        {"name": "memory", "bound": "<= 40"},
    ]
    shown = [trial for trial in part["trials"] if trial.get("front")]
    assert [trial["id"] for trial in shown] == [2, 4, 6]
    assert shown[0]["objectives"] == {"loss": 0.4, "speed": 1.0, "memory": 10.0}
    kept = [trial.get("feasible") for trial in part["trials"]]
    assert kept == [True, True, False, True, None, True]
    scene.run(scene.experiment(), losses=[0.5], end="completed")
    (part,) = scene.client.experiment(2).snapshot(curves=False)["experiments"]
    keys = {"objectives", "front", "feasible"}
    assert not keys & part.keys() and not keys & part["trials"][0].keys()
