"""Scalars, places and files."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detslurm.config import ConfigErrors, load_experiment
from detslurm.config.reading import parse, read_file

SCALARS = [
    ("1e-3", 0.001),
    ("-.5E2", -50.0),
    ("1_000_000", 1000000),
    ("012", 12),
    ("0x1F", 31),
    ("0o17", 15),
    ("+3", 3),
    ("yes", "yes"),
    ("on", "on"),
    ("1:30:00", "1:30:00"),
    ("2020-01-01", "2020-01-01"),
    ("~", None),
    ("", None),
    ("Null", None),
    ("True", True),
    ("'1'", "1"),
    ('"\\u00e9"', "é"),
    ("!!str 1", "1"),
    ("!!float 1", 1.0),
    ("! 1", "1"),
    ("1.2.3", "1.2.3"),
    ("=", "="),
    ("-", [None]),
    ("_1", "_1"),
    ("1__0", "1__0"),
]


@pytest.mark.parametrize("text, value", SCALARS)
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    """Unquoted values are what YAML 1.2 makes of them."""
    plain = parse(f"- {text}", "f").plain()[0] if text != "-" else parse("-", "f").plain()
    assert plain == value
    assert type(plain) is type(value)


def test_places_are_those_of_the_editor() -> None:
    """Lines and columns count from 1; keys and values have their own."""
    node = parse("a:\n  é: [1,\n   x]\n", "f").get("a", "é")
    assert node is not None
    assert node.key_at is not None
    assert tuple(node.key_at) == ("f", 2, 3)
    assert tuple(node.at) == ("f", 2, 6)
    assert tuple(node.value[1].at) == ("f", 3, 4)


def test_anchors_and_merge_keys_work() -> None:
    """Aliases repeat; << brings defaults in, its own keys and earlier sources win."""
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 0}\nd: *a\n'<<': 3\n"
    plain = parse(text, "f").plain()
    assert plain["c"] == {"x": 0, "y": 1, "z": 2}
    assert plain["d"] == {"x": 1, "y": 1}
    assert plain["<<"] == 3


def refused(path: Path | str) -> str:
    with pytest.raises(ConfigErrors) as caught:
        load_experiment(path)
    return str(caught.value)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    """Missing files, directories, pipes, devices, names with NUL: an error, and no waiting."""
    (tmp_path / "experiment.yaml").touch()
    assert "there is experiment.yaml" in refused(tmp_path / "experimen.yaml")
    assert "irectory" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "entrypoint is required" in refused(tmp_path / "pipe")
    assert "bigger" in refused("/dev/zero")
    assert "can't read" in refused("a\0b")


def test_bytes_that_are_no_text_are_placed(tmp_path: Path) -> None:
    """Invalid UTF-8 is named with its line; a byte order mark is no harm."""
    path = tmp_path / "e.yaml"
    path.write_bytes(b"name: a\nlabels: [\xff]\n")
    assert ":2:10: this is not UTF-8 text (byte 0xff)" in refused(path)
    path.write_bytes(b"\xef\xbb\xbfa: 1")
    assert parse(read_file(path), "f").plain() == {"a": 1}


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` reads standard input and says so in errors; the text is kept as given."""
    text = "entrypoint: a\nsearcher: {name: single, metric: m}\n"
    stdin = SimpleNamespace(buffer=io.BytesIO(text.encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert load_experiment("-").text == text
    stdin.buffer = io.BytesIO(b"- a\n")
    assert refused("-").startswith("<stdin>:1:1:")


def test_an_error_fits_one_screen(tmp_path: Path) -> None:
    """A hundred problems show twenty, and how many more there are."""
    path = tmp_path / "e.yaml"
    path.write_text("".join(f"k{i}: \x1b[31m\n".replace("\x1b", "") for i in range(100)))
    path.write_text("".join(f"key{i}: 1\n" for i in range(100)))
    lines = refused(path).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "and 82 more"


def test_what_a_file_holds_does_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    """Escape sequences and line breaks in keys and values are shown escaped."""
    path = tmp_path / "e.yaml"
    path.write_text('"\\e[31mred\\nline": "\\e[0m"\n')
    text = refused(path)
    assert "\x1b" not in text
    assert len(text.splitlines()) == 3


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "job.sh",
            "#!/bin/bash\nsrun python x: y: z\n",
            "`entrypoint: bash job.sh`. Or keep `sbatch",
        ),
        ("job.sbatch", "srun python train.py\n", "detslurm batch-script list"),
        ("train.py", "x = {1: 2}\n", "`entrypoint: python3 train.py`"),
        ("run", "#!/usr/bin/env python3\n", "`entrypoint: python3 run`"),
    ],
)
def test_a_script_is_told_how_it_is_submitted(name: str, text: str, expected: str) -> None:
    """Whether it happens to be YAML or not."""
    with pytest.raises(ConfigErrors) as raised:
        parse(text, f"/home/ada/{name}")
    assert "this is a script, not a configuration" in str(raised.value)
    assert expected in str(raised.value)


@pytest.mark.parametrize("key", ["mem", "mem_per_cpu", "exclude", "reservation", "mail-type"])
@pytest.mark.parametrize("section", ["slurm", "resources", ""])
def test_options_of_sbatch_are_set_with_sbatch_args(key: str, section: str) -> None:
    """Where no key is meant for them."""
    given = {"name": "a", "entrypoint": "true", "searcher": {"name": "single", "metric": "loss"}}
    option = {key: "x"}
    with pytest.raises(ConfigErrors) as raised:
        load_experiment({**given, **({section: option} if section else option)})
    wanted = f'write slurm.sbatch_args: ["--{key.replace("_", "-")}=..."]'
    assert wanted in str(raised.value)
