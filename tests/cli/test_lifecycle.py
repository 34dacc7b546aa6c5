"""What commands do to experiments, and what they say when they can't."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from detslurm.store import fold_facts
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import Scene


def test_determineds_messages(scene: Scene, detslurm: Detslurm) -> None:
    """Scripts that read them go on working."""
    scene.experiment(2, job="7")
    assert detslurm("e", "pause", 1).out == "Paused experiment 1\n"
    assert detslurm("e", "activate", 1).out == "Activated experiment 1\n"
    assert detslurm("t", "kill", 2).out == "Killed trial 2\n"
    assert detslurm("e", "cancel", 1).out == "Canceled experiment 1\n"
    assert detslurm("e", "archive", 1).out == "Archived experiment 1\n"
    assert detslurm("e", "unarchive", 1).out == "Unarchived experiment 1\n"
    assert detslurm("e", "delete", 1, "--yes").out == "Deleted experiment 1\n"


def test_several_ids_at_once(scene: Scene, detslurm: Detslurm) -> None:
    """One that fails stops no other, and the exit status tells."""
    scene.experiment(job="7")
    scene.experiment(job="8")
    result = detslurm("e", "kill", "1", "9", "2")
    assert result.status == 1
    assert result.out.splitlines() == ["Killed experiment 1", "Killed experiment 2"]
    assert "there is no experiment 9" in result.err
    again = detslurm("e", "kill", "1,2")
    assert again.status == 0
    facts = scene.store.experiment(1).facts()
    killed = next(fact["time"] for fact in facts if fact["type"] == "intent")
    ends = {row["id"]: row["ended"] for row in detslurm("e", "list", "--json").data}
    ended = datetime.fromisoformat(ends[1]).timestamp()
    assert ended == pytest.approx(killed)  # no run of it began
    assert again.out.splitlines()[0] == "Experiment 1 has already ended: CANCELED"


def test_what_was_done_as_json(scene: Scene, detslurm: Detslurm) -> None:
    """Every command on experiments and trials tells scripts for each id whether it was done."""
    scene.experiment(2, job="7")
    result = detslurm("e", "pause", "1", "9", "--json")
    assert result.status == 1 and "there is no experiment 9" in result.err
    assert [(one["id"], one["done"]) for one in result.data] == [(1, True), (9, False)]
    assert "there is no experiment 9" in result.data[1]["message"]
    for words, message in [
        (("e", "activate", 1), "Activated experiment 1"),
        (("e", "set", "name", 1, "a"), "Set `name` of experiment 1 to 'a'"),
        (("e", "set", "labels", 1, "a"), "Set `labels` of experiment 1 to a"),
        (("e", "set", "description", 1, "d"), "Set `description` of experiment 1 to 'd'"),
        (("e", "set", "notes", 1, "n"), "Set `notes` of experiment 1"),
        (("e", "set", "max-slots", 1, "2"), "Set `max-slots` of experiment 1 to 2"),
        (("e", "set", "priority", 1, "5"), "Set `priority` of experiment 1 to 5"),
        (("e", "label", "add", 1, "b"), "Added label 'b' to experiment 1"),
        (("e", "label", "remove", 1, "b"), "Removed label 'b' from experiment 1"),
        (("t", "kill", 2), "Killed trial 2"),
        (("e", "cancel", 1), "Canceled experiment 1"),
        (("e", "kill", 1), "Experiment 1 has already ended: CANCELED"),
        (("e", "archive", 1), "Archived experiment 1"),
        (("e", "unarchive", 1), "Unarchived experiment 1"),
        (("e", "delete", 1, "--yes"), "Deleted experiment 1"),
    ]:
        number = 2 if words[0] == "t" else 1
        assert detslurm(*words, "--json").data == [{"id": number, "done": True, "message": message}]


def test_what_is_over_is_continued_or_forked(scene: Scene, detslurm: Detslurm) -> None:
    """As a whole, or one trial of a search."""
    over = scene.experiment()
    scene.run(over, end="error")
    result = detslurm("e", "activate", 1)
    assert result.status == 1
    assert result.err.strip() == (
        "detslurm: error: can't activate experiment 1: it is ERROR; `detslurm experiment continue 1"
        " --context .` goes on from its checkpoints with the code of this directory,"
        " `fork 1 --context .` begins anew"
    )
    assert detslurm("e", "pause", 1).err.rstrip().endswith("it is ERROR")
    scene.experiment(about={"search": True})
    detslurm("e", "kill", 2)
    again = detslurm("e", "activate", 2).err
    assert "`detslurm experiment continue 2 --trial TRIAL_ID --context .`" in again


def test_settings(scene: Scene, detslurm: Detslurm) -> None:
    """Each shows up where it should."""
    scene.experiment(4, job="7")
    for name, value in {
        "name": "$(touch x)",
        "description": "a 'story'",
        "notes": "n",
        "max-slots": "2",
        "priority": "11",
    }.items():
        assert detslurm("e", "set", name, 1, value).status == 0
    assert detslurm("e", "set", "labels", 1, "a", "b").status == 0
    assert detslurm("e", "label", "add", 1, "c").out == "Added label 'c' to experiment 1\n"
    removed = detslurm("e", "label", "remove", 1, "a", "nosuch").out.splitlines()
    assert removed == [
        "Removed label 'a' from experiment 1",
        "There was no label 'nosuch' on experiment 1",
    ]
    data = detslurm("e", "describe", 1, "--json").data
    assert data["name"] == "$(touch x)"
    assert (data["description"], data["notes"]) == ("a 'story'", "n")
    assert data["labels"] == ["b", "c"]
    assert (data["max_slots"], data["priority"]) == (2, 11)
    shown = detslurm("e", "describe", 1).out
    assert "Max slots : 2\n" in shown and "Priority : 11\n" in shown
    assert ("update", "7", {"ArrayTaskThrottle": 2}) in scene.queue.calls
    assert ("update", "7", {"Nice": 10}) in scene.queue.calls
    assert detslurm("e", "set", "weight", 1, "2").status == 0
    assert scene.queue.calls[-1] == ("update", "7", {"Nice": 20})
    data = detslurm("e", "describe", 1, "--json").data
    assert (data["priority"], data["weight"]) == (None, 2)
    for name, value, field in (("resource-pool", "low", "Partition"), ("qos", "long", "QOS")):
        assert detslurm("e", "set", name, 1, value).status == 0
        assert ("update", "7_[0-3]", {field: value}) in scene.queue.calls
    assert detslurm("e", "describe", 1, "--json").data["pool"] == "low"
    assert not Path("x").exists()


def test_an_unconfirmed_deletion_deletes_nothing(
    scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question goes to stderr, with names, as ids are mistyped; anything but yes is no."""
    import io

    experiment = scene.experiment(name="as it is")
    scene.run(experiment, end="completed")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\nn\n"))
    several = detslurm("e", "delete", 1, 7)
    assert "Delete experiments 1 'as it is', 7 permanently, with all checkpoints?" in several.err
    result = detslurm("e", "delete", 1)
    assert "Delete experiment 1 'as it is' permanently, with all checkpoints?" in result.err
    assert result.status == 1
    assert result.out == ""
    assert "Aborting experiment deletion." in result.err
    assert experiment.code.exists()
    assert not fold_facts(experiment).desired.deleted


def test_download_model_def(scene: Scene, detslurm: Detslurm, tmp_path: Path) -> None:
    """The path of the archive is the result."""
    scene.experiment()
    result = detslurm("e", "download-model-def", 1, "--output-dir", tmp_path / "new")
    assert result.out.strip() == str(tmp_path / "new" / "experiment_1_model_def.tgz")
    assert Path(result.out.strip()).is_file()


@pytest.mark.parametrize(
    ("args", "status", "text"),
    [
        (["experimant"], 2, "did you mean 'experiment'?"),
        (["list"], 2, "did you mean 'experiment list' or 'trial list'"),
        (["pauze", "1"], 2, "did you mean 'experiment pause'?"),
        (["e", "descibe", "1"], 2, "did you mean 'describe'?"),
        (["e", "describe", "x"], 1, "no experiment is called 'x'"),
        (["e", "describe", "0"], 2, "ids are whole numbers"),
        (["e", "describe", "1" * 40], 2, "ids are whole numbers"),
        (["e", "describe"], 2, "ID"),
        (["e", "describe", "7"], 1, "there is no experiment 7"),
        (["t", "describe", "7"], 1, "there is no trial 7"),
        (["t", "logs", "7"], 1, "there is no trial 7"),
        (
            ["e", "logs", "1", "--head", "1", "--tail", "1"],
            2,
            "--head can't be combined with --tail",
        ),
        (["e", "logs", "1", "--timestamp-after", "noon"], 2, "neither RFC 3339"),
        (["e", "set", "priority", "1", "100"], 2, "100"),
        (["e", "set", "max-slots", "1", "0"], 1, "less than one trial needs"),
        (["e", "set", "max-slots", "1", "few"], 2, "neither a whole number nor none"),
        (["e", "archive", "1"], 1, "ACTIVE"),
        (["e", "delete", "1", "--yes"], 1, "kill it first"),
        (["e", "list", "--limit", "-1"], 2, "limit"),
        (["submit", "no-such-file.yaml"], 2, "no-such-file.yaml"),
    ],
)
def test_errors_are_short_and_on_stderr(
    scene: Scene, detslurm: Detslurm, args: list[str], status: int, text: str
) -> None:
    """1 for what can't be done, 2 for what was given wrongly; never a traceback."""
    scene.experiment()
    result = detslurm(*args)
    assert result.status == status
    assert text in result.err
    assert result.out == ""
    assert len(result.err.splitlines()) < 10
    assert "Traceback" not in result.err


def test_an_unreadable_store_names_the_path(scene: Scene, detslurm: Detslurm) -> None:
    """What the file system says comes with where."""
    scene.root.write_text("a file")
    result = detslurm("e", "describe", 1)
    assert result.status == 1
    assert str(scene.root) in result.err


def test_doctor_and_site(scene: Scene, detslurm: Detslurm, tmp_path: Path) -> None:
    """The doctor's exit status tells whether something is broken; profiles are not overwritten."""
    healthy = detslurm("doctor", tmp_path, "--json")
    assert (healthy.status, healthy.data["healthy"]) == (0, True)
    broken = detslurm("doctor", "/proc")
    assert broken.status == 1
    assert "BROKEN" in broken.out and "DETSLURM_ROOT" in broken.out
    there = tmp_path / "site.yaml"
    there.write_text("partition: main\n")
    refused = detslurm("site", "init", "-o", there)
    assert refused.status == 1 and "--force" in refused.err
    assert there.read_text() == "partition: main\n"


def test_site_show_prints_the_profile(
    scene: Scene, detslurm: Detslurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands in the file, or parsed."""
    profile = tmp_path / "site.yaml"
    profile.write_text("partition: main\n")
    monkeypatch.setenv("DETSLURM_SITE", str(profile))
    assert detslurm("site", "show").out == "partition: main\n"
    assert detslurm("site", "show", "--json").data["partition"] == "main"
