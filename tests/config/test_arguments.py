"""Hyperparameters as arguments, read back by real parsers of command lines."""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString, Transformer
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from detslurm.config.arguments import argument_file, arguments_of, fields
from detslurm.config.hydra_sweeps import sweep
from detslurm.config.schema.arguments import Arguments, Flags

TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12
) | st.text("'\\\"${}ab,[]:= \n", max_size=10)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
NAMES = st.from_regex(r"[a-z][a-z_]{0,5}", fullmatch=True)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
HPARAMS = st.dictionaries(NAMES, VALUES, max_size=4)
HOSTILE = [
    "two words",
    "it's",
    '"',
    "$(touch x)",
    "a\nb",
    "héllo ✓",
    "-1",
    "--lr",
    "`id`",
    "",
    "\\",
]


def parsed_by_argparse(words: list[str], **kinds: Any) -> dict[str, Any]:
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name, options in kinds.items():
        parser.add_argument(f"--{name}", dest=name, **options)
    return vars(parser.parse_args(words))


@given(st.dictionaries(NAMES, NUMBERS | TEXTS, max_size=4))
def test_argparse_and_click_get_each_value_whole(hparams: dict[str, Any]) -> None:
    words = arguments_of("flags", hparams)
    kinds: dict[str, Any] = {name: {"type": type(value)} for name, value in hparams.items()}
    assert parsed_by_argparse(words, **kinds) == hparams

    options: list[click.Parameter] = [
        click.Option([f"--{name}", name], type=type(value)) for name, value in hparams.items()
    ]
    command = click.Command("train", params=options)
    assert command.make_context("train", list(words)).params == hparams


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_texts_arrive_whole(value: str) -> None:
    """Also in a list, and in each form of it that has a place for the text."""
    words = arguments_of("flags", {"a": value, "model": {"name": value}})
    assert words == [f"--a={value}", f"--model.name={value}"]
    repeated = arguments_of(
        Arguments(flags=Flags(lists="--flag=1 --flag=2")), {"a": [value, value]}
    )
    assert parsed_by_argparse(repeated, a={"action": "append"}) == {"a": [value, value]}
    assert arguments_of("-m {a} --x=<{a}>", {"a": value}) == ["-m", value, f"--x=<{value}>"]
    assert arguments_of("{a} {a}", {"a": [value, 1]}) == [value, "1"] * 2


def test_choices_of_flags() -> None:
    """Each choice shows what the script gets."""
    hparams = {"amp": True, "ema": False, "none": None, "sizes": [1, -2], "m": {"deep": False}}

    def words(**choices: Any) -> list[str]:
        return arguments_of(Arguments(flags=Flags(**choices)), hparams)

    assert words() == ["--amp", "--no-ema", "--sizes", "1", "-2", "--m.no-deep"]
    assert words(separator="_", booleans="--flag") == ["--amp", "--sizes", "1", "-2"]
    assert words(booleans="--flag=true", lists="--flag=1,2", separator="-") == [
        *("--amp=true", "--ema=false", "--sizes=1,-2", "--m-deep=false")
    ]
    assert words(booleans="--flag=True", lists="--flag=[1,2]") == [
        *("--amp=True", "--ema=False", "--sizes=[1, -2]", "--m.deep=False")
    ]
    assert words(separator="_", lists="--flag=1 --flag=2") == [
        *("--amp", "--no-ema", "--sizes=1", "--sizes=-2", "--no-m_deep")
    ]


def test_booleans_and_lists_of_argparse_and_click() -> None:
    words = arguments_of("flags", {"amp": False, "sizes": [1, -2], "rates": [1e-05]})
    pair = {"action": argparse.BooleanOptionalAction}
    numbers = {"type": int, "nargs": "*"}
    rates = {"type": float, "nargs": "+"}
    found = parsed_by_argparse(words, amp=pair, sizes=numbers, rates=rates)
    assert found == {"amp": False, "sizes": [1, -2], "rates": [1e-05]}

    @click.command()
    @click.option("--amp/--no-amp", default=True)
    @click.option("--size", multiple=True, type=int)
    def train(amp: bool, size: tuple[int, ...]) -> None:
        click.echo(json.dumps([amp, size]))

    form = Arguments(flags=Flags(lists="--flag=1 --flag=2"))
    done = CliRunner().invoke(train, arguments_of(form, {"amp": False, "size": [1, -2]}))
    assert json.loads(done.output) == [False, [1, -2]]


def by_hydra(words: list[str]) -> Any:
    """The configuration that Hydra's parser and OmegaConf make of overrides."""
    config = OmegaConf.create({})
    for override in OverridesParser.create().parse_overrides(words):
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)
    return OmegaConf.to_container(config, resolve=True)


@given(HPARAMS)
def test_hydra_gets_the_same_hyperparameters(hparams: dict[str, Any]) -> None:
    """By its own parser; nothing in a text is an interpolation."""
    assert by_hydra(arguments_of("hydra", hparams)) == hparams


@pytest.mark.parametrize(
    "value", [*HOSTILE, "null", "True", "1e3", "${a}", "\\${a}", "\\\\${a}", "a,b"]
)
def test_hydra_gets_hostile_texts_whole(value: str) -> None:
    hparams = {"a": value, "model": {"name": [value]}}
    assert by_hydra(arguments_of("hydra", hparams)) == hparams


def test_hydra_words_are_plain_where_they_can_be() -> None:
    """A choice of a group has to be."""
    hparams = {
        "lr": 1e-05,
        "model": {"name": "resnet"},
        "db": "a/b",
        "none": None,
        "l": [True, "x y"],
    }
    assert arguments_of("hydra", hparams) == [
        *("lr=1e-05", "model.name=resnet", "db=a/b", "none=null", "l=[true,'x y']")
    ]


@given(HPARAMS)
def test_files_hold_the_same_hyperparameters(hparams: dict[str, Any]) -> None:
    """For PyYAML, too, whose numbers and booleans are those of YAML 1.1."""
    for name, load in (("a.json", json.loads), ("a.yaml", yaml.safe_load)):
        file = argument_file(Arguments(file=name), hparams)
        assert file is not None
        assert load(file.text) == hparams
    assert arguments_of(Arguments(file="a.json"), hparams) == ["a.json"]
    named = Arguments(file="a.json", option="--config")
    assert arguments_of(named, hparams) == ["--config", "a.json"]


def test_templates() -> None:
    """Quotes and spaces are those of a shell; dots lead into mappings; braces are doubled."""
    hparams = {"lr": 0.1, "on": True, "none": None, "model": {"name": "a b"}, "x.y": 3}
    template = "--lr {lr} -m{model.name} 'a  b' {{on}} {on}/{none} {model} {x.y}"
    assert arguments_of(template, hparams) == [
        *("--lr", "0.1", "-ma b", "a  b", "{on}", "true/null", '{"name": "a b"}', "3")
    ]
    assert fields(template) == ["lr", "model.name", "on", "none", "model", "x.y"]
    for wrong in ("--lr {lr", "--lr lr}", "'{lr}"):
        with pytest.raises(ValueError):
            fields(wrong)


def test_words_reach_a_process(tmp_path: Path) -> None:
    """As its arguments, byte for byte."""
    words = arguments_of("flags", dict(zip("abcdefghijk", HOSTILE, strict=True)))
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=True)
    assert json.loads(done.stdout) == words
    assert math.isclose(float(arguments_of("flags", {"x": 1e-7})[0].removeprefix("--x=")), 1e-7)


@pytest.mark.parametrize(
    "text",
    [
        "1,2", "0.1,1e-3", "a,b", "'a,b',\"c d\"", "choice(a,b)", "choice( 1 , true )",
        "range(4)", "range(1,6,2)", "range(5,1,-2)", "range(0,1,0.25)", "range(start=1,stop=3)",
        "[1,2],[3,[4]]", "{a:1,b:c},{a:2}", "a\\,b,c", "'it\\'s','\\\\'", "-1,+2", "x/y,a.b",
        "a b,c", "1_000,.5", "True,FALSE", "',', x", "01,-002", "08.5,0.5", "0,00", "1.,2e3",
    ],
)  # fmt: skip
def test_sweeps_are_read_as_hydra_reads_them(text: str) -> None:
    override = OverridesParser.create().parse_override(f"key={text}")
    assert override.is_sweep_override()
    found = sweep("key", text)
    assert found is not None
    wanted = [_plain(item) for item in override.sweep_iterator(transformer=Transformer.identity)]
    assert [(type(item), item) for item in found] == [(type(item), item) for item in wanted]


def _plain(item: Any) -> Any:
    if isinstance(item, QuotedString):
        return item.text
    if isinstance(item, dict):
        return {key: _plain(below) for key, below in item.items()}
    return [_plain(below) for below in item] if isinstance(item, list) else item


@pytest.mark.parametrize("text", ["1", "a b", "'a,b'", "[1,2]", "{a:1,b:2}", "a\\,b", "", "null"])
def test_single_values_are_no_sweep(text: str) -> None:
    assert not OverridesParser.create().parse_override(f"key={text}").is_sweep_override()
    assert sweep("key", text) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("glob(*)", "write the names, such as key=a,b"),
        ("interval(0,1)", "interval() is not read here"),
        ("sort(1,2)", "sort() is not read here"),
        ("[1,2", "[1,2 lacks a closing ]"),
        ("'a,b", "lacks a closing '"),
        ("range(1,2,0)", "range(1,2,0): at most 1,000,000 values are expected"),
        ("range(a,2)", "numbers are expected"),
        ("1,inf", "inf can't be one of several values here"),
        ("x,'${y}'", "'${y}' can't be one of several values here"),
    ],
)
def test_sweeps_of_hydra_alone_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        sweep("key", text)
