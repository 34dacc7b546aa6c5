"""Commands about disk space: what they show, ask, delete and free."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from detslurm.store import RunLog, fold_facts
from detslurm.store.checkpoint_facts import keep
from detslurm.store.frame import frame
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import Scene
from tests.store import collecting
from tests.store.collecting import on_disk, run


def test_a_new_policy_shows_what_it_deletes_and_asks(
    scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A no changes nothing; a yes deletes what was shown, and what is kept says for whom."""
    made = collecting.experiment(scene, trial_best=1, latest=3)
    run(scene, made, 0, [("a-1", 1, 0.1), ("b-2", 2, 0.2), ("c-3", 3, None), ("d-4", 4, 0.5)])
    keep(made, ["b-2"], by="model resnet version 3")
    before = fold_facts(made).count
    argv = ("experiment", "set", "gc-policy", 1, "--save-trial-latest", 1)
    monkeypatch.setattr("click.confirm", lambda *args, **more: False)
    refused = detslurm(*argv)
    assert refused.status == 1 and refused.out == ""
    assert "c-3" in refused.err and "1 checkpoint would be deleted, 5 B" in refused.err
    assert "b-2 is kept for model resnet version 3" in refused.err and "a-1" not in refused.err
    assert fold_facts(made).count == before and len(on_disk(scene)) == 4

    monkeypatch.setattr("click.confirm", lambda *args, **more: True)
    done = detslurm(*argv)
    assert done.status == 0
    assert done.out.splitlines() == [
        "Set GC policy of experiment 1 to save_experiment_best: 0, save_trial_best: 1,"
        " save_trial_latest: 1",
        "Deleted 1 checkpoint, 5 Bytes",
    ]
    assert on_disk(scene) == {"a-1", "b-2", "d-4"}


def test_a_policy_that_can_keep_no_best(scene: Scene, detslurm: Detslurm) -> None:
    """Where nothing has the searcher's metric it says so, before and after a question."""
    made = collecting.experiment(scene)
    number = run(scene, made, 0, [("a-1", 1, None), ("b-2", 2, None)], end=None)
    trial = made.trial(made.created().first_trial)
    with RunLog.open(trial.records_path(number)) as log:
        report = {"t": "metrics", "group": "validation", "steps": 1, "metrics": {"accuracy": 0.5}}
        log.append(report)
    trial.write_end(number, {"outcome": "completed", "time": 2.0})
    why = "experiment 1 has no checkpoint with a validation of loss at its step, but with accuracy"
    assert why in detslurm("e", "download", 1).err
    done = detslurm("e", "set", "gc-policy", 1, "--save-trial-latest", 1, "--yes")
    assert f"warning: {why}: the best of them can't be kept" in done.err
    assert on_disk(scene) == {"b-2"}


def test_a_policy_in_a_script(scene: Scene, detslurm: Detslurm) -> None:
    """With --yes nothing is asked; JSON says what was deleted; the policy can be read back."""
    made = collecting.experiment(scene)
    run(scene, made, 0, [("a", 1, 0.1), ("b", 2, 0.2)])
    done = detslurm("e", "set", "gc-policy", 1, "--save-trial-best", 0, "--yes", "--json")
    assert done.data["deleted"] == ["a"] and done.data["freed"] == 5
    policy = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 1}
    assert done.data["policy"] == policy
    assert scene.client.stored(1).gc_policy.save_trial_best == 0
    assert on_disk(scene) == {"b"}


def test_files_alone_are_read_and_changed(scene: Scene, detslurm: Detslurm) -> None:
    """Commands about checkpoints ask nothing of Slurm, whatever runs."""
    made = collecting.experiment(scene, trial_best=0)
    run(scene, made, 0, [("a-1", 1, 0.1), ("b-2", 2, 0.2)], end=None)
    for words in (
        ["checkpoint", "list"], ["checkpoint", "describe", "b-2-"], ["checkpoint", "verify", "-a"],
        ["gc"], ["checkpoint", "tree", "b-2-"], ["model", "list"],
    ):  # fmt: skip
        detslurm(*words)
    assert scene.queue.queries == [] and scene.queue.calls == []


def test_a_policy_that_makes_no_sense(scene: Scene, detslurm: Detslurm) -> None:
    """It is refused, with a reason."""
    collecting.experiment(scene)
    assert "at least one" in detslurm("e", "set", "gc-policy", 1).err
    for wrong in ("-1", "many"):
        done = detslurm("e", "set", "gc-policy", 1, "--save-trial-best", wrong, "--yes")
        assert done.status == 2 and "--save-trial-best" in done.err
    assert "no experiment 9" in detslurm("e", "set", "gc-policy", 9, "--save-trial-best", 1).err


def test_gc_shows_what_it_would_do_and_does_it(scene: Scene, detslurm: Detslurm) -> None:
    """The same rows and the same total, with and without --dry-run; then there is nothing left."""
    made = collecting.experiment(scene, trial_best=0)
    run(scene, made, 0, [("a", 1, None), ("b", 2, None)])
    scene.checkpoint("left-over")
    with (made.trial(1).records_path(1)).open("ab") as log:
        log.write(frame({"t": "checkpoint_started", "uuid": "left-over"}))
    first = detslurm("gc", "--dry-run")
    assert "Would free 10 Bytes" in first.out and "unfinished upload" in first.out
    assert on_disk(scene) == {"a", "b", "left-over"}
    second = detslurm("gc", "--json", 1)
    assert second.data["freed"] == 10
    assert [one["uuid"] for one in second.data["checkpoints"]] == ["a"]
    assert on_disk(scene) == {"b"}
    assert detslurm("gc").out == "There is nothing to delete\n"
    assert "leave out the ids" in detslurm("gc", "--unrecorded", 1).err
    assert detslurm("gc", 9).status == 1


def test_du_shows_the_largest_first(scene: Scene, detslurm: Detslurm) -> None:
    """As a table, as CSV in bytes, as JSON, by user; room and quota on stderr."""
    for count in (1, 3, 2):
        made = collecting.experiment(scene, latest=9)
        run(scene, made, 0, [(f"{made.id}-{n}", n, None) for n in range(1, count + 1)])
    done = detslurm("du")
    assert done.status == 0 and done.out.splitlines()[0].split("|")[0].strip() == "ID"
    assert "in 3 experiments" in done.err and "quota" in done.err
    rows = detslurm("du", "--json").data
    assert [(row["id"], row["checkpoints"]) for row in rows] == [(2, 15), (3, 10), (1, 5)]
    assert [row["id"] for row in detslurm("du", 1, 3, "--json").data] == [3, 1]
    assert detslurm("du", "--csv").out.splitlines()[1].startswith("2,")
    (mine,) = detslurm("du", "--by-user", "--json").data
    assert (mine["owner"], mine["experiments"], mine["checkpoints"]) == ("alice", 3, 30)
    assert detslurm("du", 9).status == 1


def test_delete_says_what_it_frees_and_leaves_nothing(
    scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, in the question, and afterwards; TensorBoard's files go, too."""
    made = collecting.experiment(scene, latest=9)
    run(scene, made, 0, [("a", 1, None), ("b", 2, None)])
    events = scene.checkpoints / f"tensorboard/experiment/{made.id}/trial/1/events"
    events.parent.mkdir(parents=True)
    events.write_bytes(b"t" * 100_000)
    asked: list[str] = []

    def confirm(text: str, **more: bool) -> bool:
        asked.append(text)
        return len(asked) > 1

    monkeypatch.setattr("click.confirm", confirm)
    assert detslurm("e", "delete", 1).status == 1
    assert "This frees 97.9" in asked[0]
    assert on_disk(scene) == {"a", "b", "tensorboard"}
    done = detslurm("e", "delete", 1)
    assert done.out.startswith("Deleted experiment 1, freeing 97.9") and done.status == 0
    assert on_disk(scene) == {"tensorboard"}
    assert [path for path in (scene.checkpoints / "tensorboard").rglob("*") if path.is_file()] == []
    assert {path.name for path in made.path.iterdir()} == {"facts"}
    assert detslurm("e", "delete", 1, "--yes").status == 0


def test_lists_warn_of_a_purge(
    scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where the site profile has `purge_days`: on stderr, in the list, in describe, in doctor."""
    made = collecting.experiment(scene)
    run(scene, made, 0, [("a", 1, None)])  # which ended in 1970
    assert detslurm("e", "list").err == ""
    site = tmp_path / "site.yaml"
    site.write_text("purge_days: 30\n")
    monkeypatch.setenv("DETSLURM_SITE", str(site))
    assert "deletes files that were not used for 30 days" in detslurm("e", "list").err
    weights = scene.checkpoints / "a" / "weights"
    os.utime(weights, (time.time() - 26 * 86400,) * 2)
    shown = detslurm("e", "describe", 1, "--json")
    assert "may delete checkpoint a in 4 days" in shown.err and shown.data["id"] == 1
    assert "soon those of experiment 1" in detslurm("doctor").out
