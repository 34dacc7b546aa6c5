"""`detslurm model`: names for checkpoints from the command line."""

from __future__ import annotations

import pytest

from detslurm.cli.output.tables import cells_of
from tests.cli.conftest import Detslurm
from tests.cli.test_widths import LONG
from tests.sdk.scenes import Scene

UUID = "0000000a-0000-4000-8000-000000000000"


@pytest.fixture
def trained(scene: Scene) -> Scene:
    """A store with one checkpoint."""
    scene.run(scene.experiment(), losses=[0.25], checkpoint=UUID, end="completed")
    return scene


def test_a_model_from_the_command_line(trained: Scene, detslurm: Detslurm) -> None:
    """Created, filled, looked at, changed and deleted: by name or by id."""
    made = detslurm(
        "m", "create", "digits", "--description", "small", "--label", "vision",
        "--metadata", "layers=2", "--metadata", "paper=no", "-w", "lab", "--json",
    ).data  # fmt: skip
    assert (made["name"], made["metadata"]) == ("digits", {"layers": 2, "paper": "no"})
    done = detslurm("model", "register-version", "digits", UUID[:8], "--notes", "ok", "--json")
    assert (done.data["version"], done.data["checkpoint_uuid"]) == (1, UUID)
    number = made["id"]
    assert detslurm("model", "register-version", number, UUID).out == (
        f"Registered checkpoint {UUID} as version 2 of model digits\n"
    )
    for words in (
        ("set", "name", "digits", "mnist"),
        ("set", "notes", "mnist", "better", "--version", 2),
        ("set", "description", "mnist", "large"),
        ("label", "add", "mnist", "a", "b"),
        ("label", "remove", "mnist", "vision"),
        ("metadata", "set", "mnist", "layers=3", "--version", 2),
        ("metadata", "remove", "mnist", "paper"),
        ("move", "mnist", "other"),
    ):
        assert detslurm("model", *words).status == 0, words
    model = detslurm("model", "describe", "mnist", "--json").data
    assert (model["labels"], model["metadata"], model["workspace"]) == (
        ["a", "b"], {"layers": 2}, "other",
    )  # fmt: skip
    assert [v["version"] for v in model["versions"]] == [2, 1]
    version = detslurm("model", "describe", "mnist", "--version", 2, "--json").data
    assert (version["notes"], version["metadata"]) == ("better", {"layers": 3})
    assert version["location"] == str(trained.root / "checkpoints" / UUID)
    assert version["validation_metrics"] == {"loss": 0.25}
    text = detslurm("model", "describe", "mnist").out
    assert "large" in text and UUID in text
    assert version["location"] in detslurm("model", "describe", "mnist", "--version", 1).out
    refused = detslurm("checkpoint", "delete", UUID, "--yes")
    assert refused.status == 1 and "model" in refused.err
    assert detslurm("model", "delete-version", "mnist", 2, "--yes").status == 0
    assert [v["version"] for v in detslurm("model", "lv", "mnist", "--json").data] == [1]
    assert detslurm("model", "delete", "mnist", "--yes").out == "Deleted model mnist\n"
    assert detslurm("model", "list", "--json").data == []
    assert detslurm("checkpoint", "delete", UUID, "--yes").status == 0


def test_a_version_says_what_became_of_its_checkpoint(trained: Scene, detslurm: Detslurm) -> None:
    """As `checkpoint describe` does: whole, damaged by its last check, removed by somebody."""
    detslurm("model", "create", "digits")
    detslurm("model", "register-version", "digits", UUID)
    words = ("model", "describe", "digits", "--version", 1)

    def shown() -> tuple[str, str, str | None]:
        lines = detslurm(*words).out.splitlines()
        rows = {name.strip(): text for name, text in (line.split(":", 1) for line in lines)}
        data = detslurm(*words, "--json").data
        assert rows.get("Problem", "").strip() == (data["problem"] or "")
        return rows["State"].strip(), data["state"], data["problem"]

    assert shown() == ("COMPLETED", "COMPLETED", None)
    weights = trained.checkpoints / UUID / "weights"
    weights.write_text("1234")
    assert detslurm("checkpoint", "verify", UUID).status == 1
    text, _, problem = shown()
    assert text == "DAMAGED" and problem is not None and "weights" in problem
    weights.unlink()
    weights.parent.rmdir()
    assert shown() == ("DELETED", "DELETED", "all its files are missing")


def test_models_are_listed(scene: Scene, detslurm: Detslurm) -> None:
    """Sorted, chosen, as a table, as CSV and as JSON; archived ones only on request."""
    for name, label in (("b", "x"), ("a", "y"), ("c", "x")):
        detslurm("model", "create", name, "--label", label)
    assert detslurm("model", "archive", "c").out == "Archived model c\n"

    def names(*words: str) -> list[str]:
        return [row["name"] for row in detslurm("model", "list", *words, "--json").data]

    assert names() == ["a", "b"]
    assert names("--sort-by", "id", "--order-by", "desc", "--all") == ["c", "a", "b"]
    assert names("--label", "x", "--all") == ["b", "c"]
    lines = detslurm("model", "ls", "--csv").out.splitlines()
    assert lines[0].startswith("ID,Name,Versions") and len(lines) == 3
    assert detslurm("model", "ls").out.splitlines()[2].split("|")[1].strip() == "a"
    assert detslurm("model", "unarchive", "c", "nothing").status == 1
    assert names() == ["a", "b", "c"]


def test_models_fit_the_terminal(
    trained: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 80 columns, and at 60, whatever they are called."""
    name = LONG.strip()
    detslurm("model", "create", name, "--label", LONG, "--metadata", f"x={LONG}", "-w", LONG)
    detslurm("model", "register-version", name, UUID, "--name", LONG)
    for module in ("tables", "printing"):
        monkeypatch.setattr(f"detslurm.cli.output.{module}.on_terminal", lambda: True)
    monkeypatch.setenv("LINES", "1000")
    for columns in (80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        for words in (("list", "--all"), ("list-versions", name)):
            result = detslurm("model", *words)
            assert result.status == 0, result.err
            assert len(result.out.splitlines()) >= 3
            assert [line for line in result.out.splitlines() if cells_of(line) > columns] == []


def test_no_terminal_obeys_what_others_wrote(trained: Scene, detslurm: Detslurm) -> None:
    """Facts of a group's store may have been written by other programs."""
    odd = {"name": "a\x1b[31m", "description": "b\x07", "notes": "c\x1b]0;mine\x07"}
    trained.store.models.log.append({"type": "model_created", **odd})
    text = detslurm("model", "describe", 1).out
    assert "\x1b" not in text and "\x07" not in text and "a?[31m" in text


def test_tab_knows_models(scene: Scene, detslurm: Detslurm) -> None:
    """By their names, with what they are."""
    from detslurm.cli.arguments import completing

    detslurm("model", "create", "resnet", "--description", "18 layers")
    assert [(one.value, one.help) for one in completing.complete("models", "re")] == [
        ("resnet", "18 layers")
    ]
    assert completing.complete("models", "x") == []


@pytest.mark.parametrize(
    ("words", "status", "expected"),
    [
        (("describe", "none"), 1, "no model 'none'"),
        (("describe", "77"), 1, "no model 77"),
        (("describe", "taken", "--version", "5"), 1, "version 5"),
        (("create", "taken"), 1, "already"),
        (("create", "3"), 1, "not a number"),
        (("create", "x", "--metadata", "y"), 2, "KEY=VALUE"),
        (("set", "name", "taken", "a/b"), 1, "no slash"),
        (("register-version", "taken", "zzzz"), 1, "zzzz"),
        (("register-version", "none", UUID), 1, "no model"),
        (("list", "--sort-by", "size"), 2, "size"),
        (("delete", "none", "--yes"), 1, "no model"),
    ],
)
def test_what_is_wrong_is_said(
    trained: Scene, detslurm: Detslurm, words: tuple[str, ...], status: int, expected: str
) -> None:
    """In one line, without a traceback."""
    detslurm("model", "create", "taken")
    result = detslurm("model", *words)
    assert (result.status, expected in result.err) == (status, True), result.err
