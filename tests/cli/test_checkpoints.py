"""`detslurm checkpoint`, and what else lists, copies and deletes checkpoints."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from detslurm.cli.checkpoint import show
from detslurm.cli.output.human import local_time, rfc3339
from detslurm.storage import list_resources
from detslurm.store import ExperimentDir, RunLog
from detslurm.store.checkpoint_facts import keep, release
from detslurm.store.records import CheckpointUsed, SearchEnded
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import Scene
from tests.store.faults import failing, refusing

GOOD = "aaaa1111-0000-4000-8000-000000000001"
BAD = "aaaa2222-0000-4000-8000-000000000002"
OTHER = "bbbb3333-0000-4000-8000-000000000003"
LATER = "cccc4444-0000-4000-8000-000000000004"


def save(scene: Scene, of: ExperimentDir, uuid: str, steps: int, loss: float, **files: str) -> Path:
    """A run that trains, validates, saves a checkpoint with these files, and ends."""
    path = scene.checkpoints / uuid
    (path / "nested").mkdir(parents=True)
    for name, text in {"weights": "12345", "optimizer": "6789", **files}.items():
        (path / name).write_text(text)
    (path / "nested" / "state").write_text("12")
    trial = of.trial(of.created().first_trial)
    number = trial.open_run({"hparams": {"lr": 0.1}, "time": 1000.0, "resume": None}).run
    with RunLog.open(trial.records_path(number)) as log:
        metrics = {"loss": loss, "accuracy": 1 - loss}
        log.append({"t": "metrics", "group": "validation", "steps": steps, "metrics": metrics})
        log.commit(
            {"t": "checkpoint", "uuid": uuid, "steps": steps, "time": 1000.0 + steps,
             "resources": list_resources(path), "metadata": {"steps_completed": steps}}
        )  # fmt: skip
    trial.write_end(number, {"outcome": "restart", "time": 2000.0})
    return path


def end(of: ExperimentDir) -> None:
    """The trial is over."""
    trial = of.trial(of.created().first_trial)
    trial.write_end(trial.open_run({"time": 3000.0}).run, {"outcome": "completed", "time": 4.0})


@pytest.fixture
def saved(scene: Scene) -> Scene:
    """An experiment that is over with two checkpoints, and one that goes on with one."""
    first = scene.experiment(name="first")
    save(scene, first, GOOD, 10, 0.25)
    save(scene, first, BAD, 20, 0.75, big="x" * 3000)
    end(first)
    save(scene, scene.experiment(name="second"), OTHER, 5, 0.5)
    return scene


def uuids(*rows: dict[str, str]) -> list[str]:
    return [row["uuid"] for row in rows]


def test_all_checkpoints_are_listed(
    saved: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filtered by experiment, trial, age and size; sorted by a field or by any metric."""
    monkeypatch.setattr(show, "time", SimpleNamespace(time=lambda: 100_000.0))
    rows = detslurm("checkpoint", "list", "--json").data
    assert uuids(*rows) == [GOOD, BAD, OTHER]
    assert rows[1] | {"time": None} == {
        "uuid": BAD, "experiment": 1, "trial": 1, "steps": 20, "state": "COMPLETED", "time": None,
        "kind": "checkpoint", "size": 3011, "validation_metric": 0.75, "problem": None,
        "validation_metrics": {"loss": 0.75, "accuracy": 0.25},
        "path": str(saved.root / "checkpoints" / BAD),
    }  # fmt: skip
    for words, found in (
        (["-e", 1], [GOOD, BAD]),
        (["-t", 2], [OTHER]),
        (["-e", "1,2", "--limit", 2], [GOOD, BAD]),
        (["--sort-by", "loss"], [GOOD, OTHER, BAD]),
        (["--sort-by", "accuracy", "--desc", "--limit", 1], [GOOD]),
        (["--sort-by", "size", "--desc", "--limit", 1], [BAD]),
        (["--sort-by", "SIZE", "--desc", "--limit", 1], [BAD]),
        (["--larger-than", "2K"], [BAD]),
        (["--older-than", "1d"], [GOOD, BAD, OTHER]),
        (["--older-than", f"{100_000 - 1008}s"], [OTHER]),
    ):
        assert uuids(*detslurm("c", "ls", *words, "--json").data) == found, words
    text = detslurm("c", "list", "-e", 1, "--sort-by", "SIZE").out
    assert GOOD in text and str(saved.root / "checkpoints" / GOOD) in text
    assert "Validation Metric" in text


def test_what_nothing_has_yet_can_be_sorted_by(scene: Scene, detslurm: Detslurm) -> None:
    """Any name while nothing was saved, and the searcher's metric while nothing was validated."""
    experiment = scene.experiment()
    assert detslurm("c", "list", "--sort-by", "accuracy").status == 0
    scene.run(experiment, checkpoint=GOOD)
    assert uuids(*detslurm("c", "list", "--sort-by", "loss", "--json").data) == [GOOD]
    for unknown in ("accuracy", "LOSS"):
        assert detslurm("c", "list", "--sort-by", unknown).status == 2


def test_what_cant_be_read_is_left_out_with_one_warning(saved: Scene, detslurm: Detslurm) -> None:
    """And it is there again once it can be read: nothing is concluded from that."""
    facts = saved.store.experiment(1).log.name(1)
    with refusing(facts):
        result = detslurm("c", "list", "--json")
    assert uuids(*result.data) == [OTHER]
    assert result.err.count("left out because it can't be read: experiment 1 (") == 1
    assert uuids(*detslurm("c", "list", "--json").data) == [GOOD, BAD, OTHER]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "-e", "x"], "no experiment is called"),
        (["list", "-e", "99"], "no experiment 99"),
        (["list", "-t", "99"], "no trial 99"),
        (["list", "--older-than", "soon"], "3min, 3h, 3d"),
        (["list", "--larger-than", "-1"], "is not a size"),
        (
            ["list", "--sort-by", "los", "--older-than", "1d"],
            "--sort-by los: give one of uuid, trial_id, experiment_id, batch_number, end_time,"
            " state, size, searcher_metric, accuracy, loss",
        ),
        (["describe", "aa"], "at least 4 characters"),
        (["describe", "aaaa"], f"is the beginning of 2 checkpoints: {GOOD}, {BAD}"),
        (["describe", "../../etc"], "not the id of a checkpoint"),
        (["describe", "ffff"], "there is no checkpoint ffff"),
        (["metadata", GOOD, "--set", "x"], "KEY=VALUE"),
        (["metadata", GOOD, "--set", "x=[1"], "not YAML"),
        (["metadata", GOOD, "--set", "x=.nan"], "a finite number is expected"),
        (["verify"], "name checkpoints to check"),
        (["delete", ","], "no id given"),
    ],
)
def test_what_is_wrong_is_said(
    saved: Scene, detslurm: Detslurm, words: list[str], message: str
) -> None:
    """In a sentence, without a traceback."""
    result = detslurm("checkpoint", *words)
    assert result.status in (1, 2) and message in " ".join(result.err.split())


def test_one_is_described_by_the_beginning_of_its_id(saved: Scene, detslurm: Detslurm) -> None:
    """With its files, what it was trained with, and what needs it."""
    keep(saved.store.experiment(1), [GOOD], by="model resnet version 3")
    saved.store.experiment(1).append(CheckpointUsed(uuid=GOOD, trial=7))
    found = detslurm("c", "describe", GOOD[:6], "--json").data
    assert found["resources"] == {
        "nested/": 0, "nested/state": 2, "optimizer": 4, "weights": 5,
    }  # fmt: skip
    assert (found["hparams"], found["metadata"]) == ({"lr": 0.1}, {"steps_completed": 10})
    assert found["needed_by"] == ["model resnet version 3"]
    assert found["used_by"] == [7]
    text = detslurm("c", "describe", GOOD).out
    assert "Used by : trial 7" in text
    assert "Needed by : model resnet version 3" in text and "11 Bytes in 3 files" in text
    assert detslurm("c", "tree", GOOD).out.splitlines()[1:] == [
        "├── nested/", "│   └── state  2 Bytes", "├── optimizer  4 Bytes", "└── weights  5 Bytes",
    ]  # fmt: skip


def test_one_that_is_not_there_is_not_found(saved: Scene, detslurm: Detslurm) -> None:
    """Scripts tell it from a refusal."""
    answer = json.loads(detslurm("c", "describe", "ffff", "--json").out)
    assert [error["kind"] for error in answer["errors"]] == ["not_found"]


def test_one_that_was_deleted_says_so(saved: Scene, detslurm: Detslurm) -> None:
    """With the time; its size and path are those that it had."""
    before = time.time()
    assert detslurm("c", "delete", GOOD, "--yes").status == 0
    found = detslurm("c", "describe", GOOD, "--json").data
    deleted = saved.client.checkpoint(GOOD).view.deleted_time
    assert deleted is not None and before <= deleted <= time.time()
    assert (found["state"], found["deleted_time"]) == ("DELETED", rfc3339(deleted))
    text = detslurm("c", "describe", GOOD).out
    assert f"Deleted : {local_time(deleted)}" in text
    assert "Size : had 11 Bytes in 3 files" in text and f"Path : was {saved.root}" in text
    assert detslurm("c", "describe", BAD, "--json").data["deleted_time"] is None


def test_metadata_is_edited(saved: Scene, detslurm: Detslurm, tmp_path: Path) -> None:
    """Values are YAML; a copy has what was edited, the stored files stay as they are."""
    assert detslurm(
        "c", "metadata", GOOD, "--set", "note=for the paper", "--set", "n=[1, 2]", "--json"
    ).data == {"steps_completed": 10, "note": "for the paper", "n": [1, 2]}
    words = [f"--set={pair}" for pair in ("lr=1e-4", "at=12:30", "day=2026-02-30", "ok=no")]
    found = detslurm("c", "metadata", GOOD, *words, "--json").data
    assert [found[key] for key in ("lr", "at", "day", "ok")] == [1e-4, "12:30", "2026-02-30", "no"]
    gone = [f"--remove={key}" for key in ("n", "absent", "lr", "at", "day", "ok")]
    detslurm("c", "metadata", GOOD, *gone)
    assert "note: for the paper" in detslurm("c", "metadata", GOOD).out
    copy = Path(detslurm("c", "download", GOOD, "-o", tmp_path / "copy", "-q").out.strip())
    assert json.loads((copy / "metadata.json").read_text()) == {
        "steps_completed": 10, "note": "for the paper",
    }  # fmt: skip
    assert not (saved.root / "checkpoints" / GOOD / "metadata.json").exists()


def test_a_part_is_deleted_by_patterns(saved: Scene, detslurm: Detslurm) -> None:
    """What is left is recorded and listed; all files gone is deleted, changes by hand are taken."""
    folder = saved.root / "checkpoints" / GOOD
    assert detslurm("c", "rm", GOOD, "--glob", "opt*", "-y").out == (
        f"Deleted 1 file of checkpoint {GOOD}: PARTIALLY_DELETED\n"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["nested", "weights"]
    row = detslurm("c", "list", "--json").data[0]
    assert (row["state"], row["size"]) == ("PARTIALLY_DELETED", 7)
    (folder / "weights").write_text("1")
    assert detslurm("c", "verify", GOOD).status == 1
    assert detslurm("c", "rm", GOOD, "--json").data[0]["removed"] == []
    row = detslurm("c", "list", "--json").data[0]
    assert (row["size"], row["problem"]) == (3, None)
    assert detslurm("c", "verify", GOOD).status == 0
    assert detslurm("c", "rm", GOOD, "--glob", "**", "-y").status == 0
    assert not folder.exists()
    assert uuids(*detslurm("c", "list", "--json").data) == [BAD, OTHER]
    assert uuids(*detslurm("c", "list", "--all", "--json").data) == [GOOD, BAD, OTHER]


def test_what_was_deleted_beside_what_is_needed_is_said(saved: Scene, detslurm: Detslurm) -> None:
    """A checkpoint that is refused keeps no other from it, and the document has those."""
    keep(saved.store.experiment(1), [GOOD], by="model resnet version 3")
    command = ("c", "rm", f"{GOOD},{BAD},{OTHER}", "--glob", "opt*", "--yes")
    result = detslurm(*command, "--json")
    assert result.data == [{"uuid": BAD, "state": "PARTIALLY_DELETED", "removed": ["optimizer"]}]
    assert (result.status, result.err.count("is needed by")) == (1, 2)
    again = detslurm(*command)
    assert (again.status, again.err.count("is needed by")) == (1, 2)
    assert again.out == f"Deleted 0 files of checkpoint {BAD}: PARTIALLY_DELETED\n"


def test_what_is_needed_is_not_deleted(saved: Scene, detslurm: Detslurm) -> None:
    """Neither whole nor in part; the others are, and the command says what needs the rest."""
    number = keep(saved.store.experiment(1), [GOOD], by="model resnet version 3")
    result = detslurm("c", "delete", f"{GOOD},{BAD},{OTHER}", "--yes")
    assert result.status == 1
    assert f"checkpoint {GOOD} is needed by model resnet version 3" in result.err
    assert f"checkpoint {OTHER} is needed by trial 2, which is QUEUED and goes on" in result.err
    assert [(saved.root / "checkpoints" / uuid).exists() for uuid in (GOOD, BAD, OTHER)] == [
        True, False, True,
    ]  # fmt: skip
    assert "needed by model" in detslurm("c", "rm", GOOD, "--glob", "opt*", "-y").err
    assert (saved.root / "checkpoints" / GOOD / "optimizer").exists()
    release(saved.store.experiment(1), number)
    assert detslurm("c", "delete", GOOD, "--yes").out == f"Deleted checkpoint {GOOD}: 11 Bytes\n"
    again = detslurm("c", "delete", GOOD, "--yes")
    assert (again.out, again.err) == ("", f"checkpoint {GOOD} had been deleted before\n")
    assert "was deleted" in detslurm("c", "download", GOOD).err


def test_what_a_run_that_may_live_began_with_is_not_deleted(
    saved: Scene, detslurm: Detslurm
) -> None:
    """Neither whole nor in part, while its job may be there: once that is known to be gone the run
    uses nothing, but the trial keeps what it would go on from."""
    experiment = saved.store.experiment(2)
    trial = experiment.trial(2)
    trial.open_run({"resume": {"uuid": OTHER, "steps": 5}, "time": 3000.0})
    with RunLog.open(trial.records_path(2)) as log:
        saved.checkpoint(LATER)
        log.commit({"t": "checkpoint", "uuid": LATER, "steps": 6, "resources": {"weights": 5}})
    for words in (["delete"], ["rm", "--glob", "weights"]):
        refused = detslurm("checkpoint", *words, OTHER, "--yes")
        assert refused.status == 1
        assert "trial 2, which is RUNNING: a run of it that has no end" in refused.err
        assert detslurm("checkpoint", "describe", OTHER, "--json").data["state"] == "COMPLETED"
    experiment.append({"type": "lost", "trials": [2], "reason": "NODE_FAIL"})
    assert detslurm("checkpoint", "rm", OTHER, "--glob", "weights", "--yes").status == 0
    assert detslurm("checkpoint", "delete", OTHER, "--yes").status == 0
    assert not (saved.checkpoints / OTHER).exists()
    refused = detslurm("checkpoint", "delete", LATER, "--yes")
    assert "trial 2, which is ERROR and goes on from it" in refused.err
    experiment.append({"type": "intent", "intent": "kill"})
    assert detslurm("checkpoint", "delete", LATER, "--yes").status == 0


def test_links_lead_to_the_best_and_the_newest(saved: Scene, detslurm: Detslurm) -> None:
    """Commands that list or delete mend them; the deletion of the experiment takes the links,
    and nothing that they lead to."""
    folder = saved.store.experiment(1).path
    detslurm("e", "list-checkpoints", 1)
    assert [(folder / name).resolve().name for name in ("best", "latest")] == [GOOD, BAD]
    detslurm("c", "delete", GOOD, "-y")
    assert (folder / "best").resolve().name == BAD
    keep(saved.store.experiment(2), [OTHER], by="model resnet version 3")
    (folder / "best").unlink()
    (folder / "best").symlink_to(saved.root / "checkpoints" / OTHER)  # by hand
    assert detslurm("e", "delete", 1, "-y").status == 0
    assert not {"best", "latest"} & {path.name for path in folder.iterdir()}
    assert (saved.root / "checkpoints" / OTHER / "weights").exists()


def test_changes_by_hand_are_found(saved: Scene, detslurm: Detslurm) -> None:
    """`verify` says what is missing, changed or new; lists say so from then on, until it is
    mended."""
    good, bad = (saved.root / "checkpoints" / uuid for uuid in (GOOD, BAD))
    assert detslurm("c", "verify", "--all").status == 0
    (good / "weights").unlink()
    (good / "optimizer").write_text("changed")
    (good / "nested" / "new").touch()
    problem = (
        "missing: weights; of another size: optimizer (7 bytes, not 4); not recorded: nested/new"
    )
    result = detslurm("c", "verify", "-e", 1, "--json")
    assert (result.status, [(r["uuid"], r["problem"]) for r in result.data]) == (
        1, [(GOOD, problem)],
    )  # fmt: skip
    assert "2 checkpoints checked, 1 with problems" in result.err
    both = detslurm("c", "verify", GOOD, "-e", 1, "--json")
    assert "2 checkpoints checked, 1 with problems" in both.err and both.data == result.data
    assert detslurm("c", "list", "--json").data[0]["problem"] == problem
    assert "DAMAGED" in detslurm("e", "lc", 1).out
    (good / "weights").write_text("12345")
    (good / "optimizer").write_text("6789")
    (good / "nested" / "new").unlink()
    assert detslurm("c", "verify", GOOD).status == 0
    assert detslurm("c", "list", "--json").data[0]["problem"] is None
    shutil.rmtree(bad)
    row = detslurm("c", "list", "--json").data[1]
    assert (row["state"], row["problem"]) == ("DELETED", "all its files are missing")
    assert detslurm("c", "verify", BAD).status == 1


@pytest.mark.parametrize("refusal", [errno.EROFS, errno.EPERM])
def test_what_was_found_is_said_in_a_read_only_store(
    saved: Scene, detslurm: Detslurm, refusal: int
) -> None:
    """And that it is not recorded; so it is where there are no hard links."""
    (saved.root / "checkpoints" / GOOD / "weights").unlink()
    with failing("link", refusal, times=99):
        result = detslurm("c", "verify", "-e", 1, "--json")
    assert [(row["uuid"], row["problem"]) for row in result.data] == [(GOOD, "missing: weights")]
    assert result.status == 1 and "2 checkpoints checked, 1 with problems" in result.err
    assert "the result for experiment 1 is not recorded" in result.err


def test_what_was_deleted_can_not_be_verified(saved: Scene, detslurm: Detslurm) -> None:
    """`verify` says so, goes on with the others, does not succeed, and records nothing."""
    detslurm("c", "delete", GOOD, "-y")
    result = detslurm("c", "verify", GOOD, BAD, "--json")
    gone = "it was deleted: there is nothing to verify"
    assert [(row["uuid"], row["state"], row["problem"]) for row in result.data] == [
        (GOOD, "DELETED", gone)
    ]
    assert result.status == 1
    assert "1 checkpoint checked, 0 with problems, 1 deleted" in result.err
    text = detslurm("c", "verify", GOOD)
    assert text.status == 1 and "DELETED" in text.out
    assert "0 checkpoints checked, 0 with problems, 1 deleted" in text.err
    assert detslurm("c", "describe", GOOD, "--json").data["problem"] is None
    assert detslurm("c", "verify", "--all").status == 0


def test_a_part_that_is_deleted_hides_no_damage_of_others(saved: Scene, detslurm: Detslurm) -> None:
    """What was found of the deleted files alone goes; what is missing stays recorded."""
    folder = saved.checkpoints / GOOD
    (folder / "weights").unlink()
    (folder / "optimizer").write_text("changed")
    (folder / "more").touch()
    assert detslurm("c", "verify", GOOD).status == 1
    assert detslurm("c", "rm", GOOD, "--glob", "opt*", "-y").status == 0
    row = detslurm("c", "list", "--json").data[0]
    assert row["problem"] == "missing: weights; not recorded: more"
    assert detslurm("c", "verify", GOOD).status == 1
    assert detslurm("c", "rm", GOOD, "--glob", "weights", "--glob", "more", "-y").status == 0
    row = detslurm("c", "list", "--json").data[0]
    assert (row["state"], row["problem"], row["size"]) == ("PARTIALLY_DELETED", None, 2)
    assert detslurm("c", "verify", GOOD).status == 0


@pytest.mark.parametrize("option", ["-e", "-t"])
def test_no_id_is_not_all_of_them(saved: Scene, detslurm: Detslurm, option: str) -> None:
    """Of a variable that is not set."""
    refused = detslurm("c", "list", option, "")
    assert refused.status == 2 and "no id given" in refused.err


def test_a_storage_that_is_not_mounted_is_no_damage(
    scene: Scene, detslurm: Detslurm, tmp_path: Path
) -> None:
    """`verify` says UNKNOWN, does not succeed, and records nothing."""
    storage, away = tmp_path / "disk", tmp_path / "unmounted"
    elsewhere = replace(scene, storage=storage)
    save(elsewhere, elsewhere.experiment(), GOOD, 10, 0.25)
    storage.rename(away)
    storage.mkdir()
    result = detslurm("c", "verify", "--all", "--json")
    assert (result.status, {row["state"] for row in result.data}) == (1, {"UNKNOWN"})
    assert "0 checkpoints checked, 0 with problems, 1 that can't be seen from here" in result.err
    assert "DAMAGED" not in detslurm("c", "verify", "--all").out
    storage.rmdir()
    away.rename(storage)
    assert {row["problem"] for row in detslurm("c", "list", "--json").data} == {None}


def test_what_can_not_be_read_is_no_damage(saved: Scene, detslurm: Detslurm) -> None:
    """Of another user, say: `verify` says so, goes on with the others, and records nothing."""
    with refusing(saved.root / "checkpoints" / GOOD / "nested"):
        result = detslurm("c", "verify", "--all", "--json")
    assert [(row["uuid"], row["state"]) for row in result.data if row["problem"]] == [
        (GOOD, "UNKNOWN")
    ]
    assert result.status == 1 and "2 checkpoints checked, 0 with problems, 1" in result.err
    assert {row["problem"] for row in detslurm("c", "list", "--json").data} == {None}


def test_a_link_to_the_code_is_no_damage(scene: Scene, detslurm: Detslurm, tmp_path: Path) -> None:
    """A PyTorchTrial's checkpoint leads to the frozen code: it is verified, also where the link
    leads to nothing from here, and downloaded, with the code if it is there."""
    experiment = scene.experiment()
    experiment.code.mkdir(exist_ok=True)
    (experiment.code / "model.py").write_text("x = 1")
    folder = scene.checkpoints / GOOD
    folder.mkdir(parents=True)
    (folder / "code").symlink_to(experiment.code)
    save(scene, experiment, GOOD, 10, 0.25)
    end(experiment)
    assert detslurm("c", "verify", GOOD).status == 0
    assert detslurm("c", "download", GOOD, "-o", tmp_path / "one").status == 0
    assert (tmp_path / "one" / "code" / "model.py").read_text() == "x = 1"
    (folder / "code").unlink()
    (folder / "code").symlink_to(tmp_path / "gone")
    assert detslurm("c", "verify", GOOD).status == 0
    for _ in range(2):  # the second time it is there
        assert detslurm("c", "download", GOOD, "-o", tmp_path / "two").status == 0
    assert (tmp_path / "two" / "weights").exists() and not (tmp_path / "two" / "code").exists()


@pytest.mark.parametrize("words", [["c", "list"], ["e", "lc", 1], ["t", "lc", 1]])
def test_lists_as_yaml(saved: Scene, detslurm: Detslurm, words: list[str]) -> None:
    """The same as in JSON."""
    assert yaml.safe_load(detslurm(*words, "--yaml").out)["data"] == detslurm(*words, "--json").data


def test_the_best_of_files_that_are_gone(saved: Scene, detslurm: Detslurm) -> None:
    """The metric is there; the files are not, and that is what is said."""
    for uuid in [path.name for path in saved.checkpoints.iterdir()]:
        shutil.rmtree(saved.checkpoints / uuid)
    detslurm("checkpoint", "verify", 1)
    said = detslurm("experiment", "download", 1)
    assert said.status == 1 and "has no whole checkpoint: files are missing, of" in said.err


@pytest.mark.parametrize(
    ("name", "shown"), [("model.pt", "model.pt"), (os.fsdecode(b"caf\xe9.pt"), "caf\\udce9.pt")]
)
def test_deep_verification_reads_checksums(
    scene: Scene, detslurm: Detslurm, name: str, shown: str
) -> None:
    """A bit that changed in what `torch.save` writes (a zip archive) is found by --deep alone."""
    experiment = scene.experiment()
    archive = scene.root / "model.pt"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("data/0", b"weights" * 100)
    path = save(scene, experiment, GOOD, 1, 0.5, **{name: "x" * archive.stat().st_size})
    end(experiment)
    shutil.copy(archive, path / name)
    assert detslurm("c", "verify", GOOD, "--deep").status == 0
    data = bytearray((path / name).read_bytes())
    data[200] ^= 1
    (path / name).write_bytes(data)
    assert detslurm("c", "verify", GOOD).status == 0
    result = detslurm("c", "verify", GOOD, "--deep", "--json")
    problem = f"with wrong checksums: {shown} (data/0)"
    assert (result.status, result.data[0]["problem"]) == (1, problem)
    assert detslurm("c", "rm", GOOD, "--glob", "opt*", "-y").status == 0
    assert detslurm("c", "list", "--json").data[0]["problem"] == problem
    assert detslurm("c", "rm", GOOD, "--glob", "*.pt", "-y").status == 0
    assert detslurm("c", "list", "--json").data[0]["problem"] is None


def test_names_that_users_chose_are_no_times(saved: Scene, detslurm: Detslurm) -> None:
    """A float under `time` in metadata stays what it is; our own times are RFC 3339."""
    changed = detslurm(
        "c", "metadata", GOOD, "--set", "time=1.5", "--set", "a={ended: 2.5}", "--json"
    )
    assert changed.data["time"] == 1.5 and changed.data["a"] == {"ended": 2.5}
    found = detslurm("c", "describe", GOOD, "--json").data
    assert found["metadata"]["time"] == 1.5 and found["time"].endswith("Z")


def test_what_a_search_may_start_a_trial_from_is_not_deleted(
    scene: Scene, detslurm: Detslurm
) -> None:
    """Until the search is over."""
    made, log = scene.search()
    log.commit([{"e": "work_requested", "worker": "7_0"}])
    for uuid, steps in ((GOOD, 10), (BAD, 20)):
        save(scene, made, uuid, steps, 0.5)
    ended = {"e": "run_ended", "trial": 0, "worker": "7_0", "outcome": "released"}
    log.commit([{**ended, "fencing_token": 1, "checkpoint": GOOD}])
    for words in (["delete"], ["rm", "--glob", "weights"]):
        refused = detslurm("checkpoint", *words, GOOD, "--yes")
        assert refused.status == 1
        assert (
            "needed by the search of experiment 1, which may start a trial from it" in refused.err
        )
    made.append(SearchEnded(created=1, closed={1: "completed"}))
    assert detslurm("checkpoint", "delete", GOOD, "--yes").status == 0
