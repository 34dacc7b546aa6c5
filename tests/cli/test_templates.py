"""Templates: parts of configurations that are kept by name, and merged below others."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from detslurm.config import ConfigErrors
from detslurm.config.reading import parse
from detslurm.sdk import Client
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import YAML, Scene


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """A file with a part of a configuration."""
    path = tmp_path / "part.yaml"
    path.write_text("max_restarts: 9\nlabels: [of-template]\nslurm: {slot_type: cuda}\n")
    return path


def test_a_template_goes_below_a_configuration(
    scene: Scene, detslurm: Detslurm, part: Path, tmp_path: Path
) -> None:
    """What the configuration sets wins, what it does not set comes from the template."""
    assert detslurm("tpl", "create", "patient", part).status == 0
    (tmp_path / "experiment.yaml").write_text(YAML + "labels: [own]\n")
    (tmp_path / "train.py").write_text("print('hello')\n")
    words = ("submit", tmp_path / "experiment.yaml", "--template", "patient", "--json")
    number = detslurm(*words).data["experiment_id"]
    config = detslurm("experiment", "config", number, "--json").data
    assert (config["max_restarts"], config["slurm"]["slot_type"]) == (9, "cpu")
    assert sorted(config["labels"]) == ["of-template", "own"]
    near = detslurm("submit", tmp_path / "experiment.yaml", "--template", "patent")
    assert near.status == 2 and 'did you mean "patient"' in near.err
    two = detslurm(*words, "--template", "other")
    assert two.status == 2 and "make one of patient, other" in two.err


def test_a_mapping_is_kept_as_it_is(scene: Scene, detslurm: Detslurm) -> None:
    """Text that looks like a number stays text, here and in what `experiment config` prints."""
    texts = ["1e-3", "0o17", "1e3", "+.5", "yes", "1_0", "", "~", "a: b\n", "\x85"]
    given = {"hyperparameters": {"t": texts, "lr": numpy.float64(0.5), "pair": (1, True)}}
    plain = {"hyperparameters": {"t": texts, "lr": 0.5, "pair": [1, True]}}
    client = Client(scene.root)
    assert client.set_template("a", given).config == plain
    assert "  lr: 0.5\n" in detslurm("template", "describe", "a").out
    experiment = scene.experiment(text=YAML.replace("python3 train.py", '"0o17"'))
    assert parse(detslurm("experiment", "config", experiment.id).out, "x").plain() == (
        detslurm("experiment", "config", experiment.id, "--json").data
    )
    for value in (numpy.int64(1), Path("x"), object()):
        with pytest.raises(ConfigErrors, match=r"data\.x: a value of type .* can't be configured"):
            client.set_template("a", {"data": {"x": value}})


def test_templates_are_created_replaced_listed_and_removed(
    scene: Scene, detslurm: Detslurm, part: Path, tmp_path: Path
) -> None:
    """`create` refuses a name that is taken, `set` does not; what is wrong has its line."""
    assert detslurm("template", "create", "a", part).out == "Created template a\n"
    again = detslurm("template", "create", "a", part, "--json")
    assert again.status == 1 and "already" in again.err
    other = tmp_path / "other.yaml"
    other.write_text("max_restarts: 1\n")
    for words in (("set", "b"), ("set", "a"), ("set-value", "config", "a")):
        assert detslurm("template", *words, other).status == 0
    assert detslurm("template", "describe", "a").out == "max_restarts: 1\n"
    assert detslurm("template", "describe", "a", "--json").data["config"] == {"max_restarts": 1}
    rows = detslurm("template", "list", "--json").data
    assert [row["name"] for row in rows] == ["a", "b"] and not rows[0]["shared"]
    assert "max_restarts: 1" in detslurm("tpl", "ls", "-d").out
    assert detslurm("template", "remove", "a").status == 0
    assert [one.name for one in Client(scene.root).list_templates()] == ["b"]
    missing = detslurm("template", "set-value", "config", "a", other)
    assert missing.status == 1 and "no template 'a'" in missing.err


@pytest.mark.parametrize(("there", "other"), [(["--shared"], []), ([], ["--shared"])])
def test_a_part_is_replaced_where_it_is(
    scene: Scene, detslurm: Detslurm, part: Path, there: list[str], other: list[str]
) -> None:
    """The group's only with --shared, one's own only without: no second one comes to be."""
    scene.store.path.joinpath("shared-templates").mkdir()
    assert detslurm("template", "create", "a", part, *there).status == 0
    for words in (("set-value", "config", "a", part), ("remove", "a")):
        wrong = detslurm("template", *words, *other)
        says = "is the group's: use --shared" if there else "is your own: leave out --shared"
        assert wrong.status == 1 and f"template 'a' {says}" in wrong.err
    (row,) = detslurm("template", "list", "--json").data
    assert row["shared"] == bool(there)
    assert detslurm("template", "set-value", "config", "a", part, *there).status == 0
    assert detslurm("template", "set", "a", part, *other).status == 0
    assert detslurm("template", "set-value", "config", "a", part, *other).status == 0


@pytest.mark.parametrize(
    ("words", "text", "status", "expected"),
    [
        (("create", "x"), "max_restart: 3\n", 2, 'did you mean "max_restarts"'),
        (("create", "x"), "[1, 2]\n", 2, "a mapping"),
        (("create", "../x"), "", 1, "a template's name"),
        (("create", "x.yaml"), "", 1, "a template's name"),
        (("create", "x", "--shared"), "", 1, "not shared with a group"),
        (("describe", "x"), None, 1, "no template 'x'"),
        (("remove", "x"), None, 1, "no template 'x'"),
    ],
)
def test_what_is_wrong_is_said(
    scene: Scene,
    detslurm: Detslurm,
    tmp_path: Path,
    words: tuple[str, ...],
    text: str | None,
    status: int,
    expected: str,
) -> None:
    """No traceback, nothing written."""
    file = tmp_path / "part.yaml"
    file.write_text(text or "")
    result = detslurm("template", *words[:2], *([file] if text is not None else []), *words[2:])
    assert result.status == status, result.err
    assert expected in result.err
    assert not list((scene.root / "templates").glob("*"))


def test_tab_knows_templates_and_examples(scene: Scene, detslurm: Detslurm, part: Path) -> None:
    """Names of templates, files where there is none, and what comes with the package."""
    from detslurm.cli.arguments import completing

    detslurm("template", "create", "patient", part)
    assert [item.value for item in completing.complete("templates", "pa")] == ["patient"]
    assert [item.type for item in completing.complete("templates_and_files", "./x")] == ["file"]
    assert "cpu-24h" in [item.value for item in completing.complete("site_examples", "cpu")]
    assert "torch" in [item.value for item in completing.complete("batch_scripts", "")]


def test_examples_of_site_profiles_are_listed_and_written(
    scene: Scene, detslurm: Detslurm, tmp_path: Path
) -> None:
    """`site init --from` begins with one of them; a wrong name is answered with the right ones."""
    names = [row["name"] for row in detslurm("site", "list", "--json").data]
    assert {"gpu-gres", "cpu-24h", "preempt-cancel"} <= set(names)
    target = tmp_path / "new" / "site.yaml"
    assert detslurm("site", "init", "--from", "cpu-24h", "-o", target).status == 0
    assert target.read_text() == detslurm("site", "show", "cpu-24h").out
    wrong = detslurm("site", "init", "--from", "cpu-25h")
    assert wrong.status == 2 and "cpu-24h" in wrong.err
