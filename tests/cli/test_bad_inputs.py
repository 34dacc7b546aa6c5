"""Bad inputs to every command: each gets a message and an exit status, none a traceback."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from detslurm.cli.app import app
from detslurm.cli.arguments.seconds import Seconds
from scripts import cli_reference
from tests.cli.conftest import Detslurm
from tests.envelope import errors_of
from tests.sdk.scenes import Scene

BAD_IDS = ["0", "-1", "1.5", "٣", "9" * 40, "999", "nosuch", "no*such", "@", "@-0", "@-99", "@last"]
BAD_IDS += ["", ",", "1,,x", "\x1b[31m", "a/b", "[", "é" * 300]
FILES = ["/nonexistent/file", "/", "/dev/null", "/proc/self/mem", "", "\x1b", "x" * 5000]
BAD: dict[type, list[str]] = {
    click.IntRange: ["-1", "x", "1e9", "", "nan"],
    Seconds: ["-1", "x", "nan", "inf", "1e99", ""],
    click.Choice: ["nosuch", ""],
    click.types.BoolParamType: ["perhaps"],
}


def leaves() -> Iterator[tuple[str, click.Command]]:
    for command, context in cli_reference.commands(app, cli_reference.top()):
        if not isinstance(command, click.Group):
            yield context.command_path.partition(" ")[2], command


def arguments(command: click.Command) -> list[click.Argument]:
    return [p for p in command.params if isinstance(p, click.Argument)]


def takes_experiments(argument: click.Argument) -> bool:
    return argument.name in ("experiment_id", "trial_id", "ids")


def command_lines() -> Iterator[list[str]]:
    """Every command with bad ids, bad values of each option, too few and too many words."""
    for path, command in leaves():
        words, needed = path.split(), arguments(command)
        fill = ["1"] * sum(bool(argument.required) for argument in needed)
        yield [*words, "--nosuch"]
        yield [*words, *fill, *["surplus"] * 3, "--nosuch=1"]
        if fill:
            yield words
        if needed and takes_experiments(needed[0]):
            yield from ([*words, bad, *fill[1:]] for bad in BAD_IDS)
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.is_flag:
                for bad in BAD.get(type(parameter.type), []):
                    yield [*words, *fill, parameter.opts[-1], bad]
                yield [*words, *fill, parameter.opts[-1]]
    for name in FILES:
        for start in ("submit", "preview-search", "simulate", "submit --dry-run"):
            yield [*start.split(), name]
    yield from map(shlex.split, SINGLE.strip().splitlines())


SINGLE = """
submit experiment.yaml --config nosuch
submit experiment.yaml --config =1
submit experiment.yaml --config a.b.c.d=1
submit experiment.yaml --config 'searcher=['
submit experiment.yaml --config 'name=\x00'
submit experiment.yaml --template nosuch
submit experiment.yaml --include /nonexistent
submit experiment.yaml --project /
submit experiment.yaml /nonexistent
submit experiment.yaml experiment.yaml
experiment list --columns nosuch
experiment list --sort nosuch
experiment list --columns ,
experiment list --json --csv
experiment set name 1 ''
experiment set name 1 'a\tb'
experiment set name 1 '\x1b]0;x\x07'
experiment set notes 1 '\x1b'
experiment set labels 1 ''
experiment set max-slots 1 many
experiment set priority 1 0
experiment set weight 1 0
experiment move 1 '' x
experiment move 1 a/b x
experiment label add 1 ''
experiment logs 1 --head 1 --tail 1
experiment logs 1 --head 1 --follow
experiment logs 1 --timestamp-after yesterday
experiment logs 1 --level LOUD
experiment logs 1 --source agent
experiment logs 1 --container-id 7a3c
experiment logs 1 --stdtype stdout
experiment logs 1 --agent-id n1
experiment list-trials 1 --sort-by nosuch
experiment describe 1 2
experiment archive 1
experiment delete 1 --yes
experiment download-model-def 1 -o experiment.yaml
trial download 1
trial download 1 --best --latest
trial download 1 --uuid ../../etc
trial download 1 --uuid ''
trial support-bundle 1 -o /nonexistent/x.tar.gz
trial support-bundle 999
experiment describe 1 --outdir /dev/null
trial metrics 1 --name nosuch --json --csv
trial logs 999
project list nosuch
workspace list-projects ''
site init -o experiment.yaml
site init -o /nonexistent/x
completion install nosuch
squeue
det e ls
'' list
"\U0001f600"
"""


@pytest.fixture
def here(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A directory of one's own, a HOME of one's own, and a store with one running experiment."""
    scene.run(scene.experiment(), losses=[0.5])
    (tmp_path / "experiment.yaml").write_text("name: x\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    return scene


def check(detslurm: Detslurm, words: list[str]) -> None:
    """A failure that says what is wrong; an exception that gets here fails the test."""
    result = detslurm(*words)
    assert result.status in (1, 2), words
    assert "Traceback" not in result.err
    assert "detslurm: error: " in result.err or result.err.startswith("Usage: "), words
    for line in result.err.split("detslurm: error: ")[1:]:
        assert line.strip(), words


def test_two_hundred_bad_inputs_and_no_traceback(here: Scene, detslurm: Detslurm) -> None:
    """The command lines come from the commands themselves: new ones are in by themselves."""
    lines = list(command_lines())
    assert len(lines) >= 200
    for words in lines:
        check(detslurm, words)


def test_an_option_with_a_few_values_names_them(here: Scene, detslurm: Detslurm) -> None:
    """On one line, whether it is missing or is something else."""
    missing = detslurm("experiment", "export", 1, "-o", "runs").err.splitlines()[-1]
    other = detslurm("experiment", "export", 1, "--to", "excel", "-o", "runs").err.splitlines()[-1]
    values = "give one of csv, parquet, tensorboard, wandb, mlflow, trackio"
    assert missing == f"detslurm: error: --to is missing: {values}"
    assert other == f"detslurm: error: --to 'excel': {values}"


def test_huge_numbers(here: Scene, detslurm: Detslurm) -> None:
    """More than there are is no mistake, and nothing overflows."""
    for path, command in leaves():
        fill = ["1"] * sum(bool(argument.required) for argument in arguments(command))
        for parameter in command.params:
            if isinstance(parameter, click.Option) and type(parameter.type) is click.IntRange:
                result = detslurm(*path.split(), *fill, parameter.opts[-1], "9" * 400)
                assert result.status in (0, 1, 2)


def test_errors_of_every_command_come_as_json(here: Scene, detslurm: Detslurm) -> None:
    """Where a command has --json, what is wrong with its words is in the envelope."""
    for path, command in leaves():
        if any("--json" in p.opts for p in command.params):
            result = detslurm(*path.split(), "--nosuch", "--json")
            assert result.status == 2
            assert [error["kind"] for error in errors_of(result.out)] == ["usage"], path


@pytest.mark.parametrize("root", ["missing", "file", "unreadable"])
def test_a_store_that_cant_be_used(
    scene: Scene,
    detslurm: Detslurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    root: str,
) -> None:
    """Every command on ids says so."""
    path = tmp_path / root
    if root == "file":
        path.write_text("")
    elif root == "unreadable":
        (path / "experiments").mkdir(parents=True)
        (path / "experiments" / "1").write_text("not a directory")
    monkeypatch.setenv("DETSLURM_ROOT", str(path))
    for name, command in leaves():
        needed = arguments(command)
        if needed and takes_experiments(needed[0]) and needed[0].required:
            check(detslurm, [*name.split(), *["1"] * sum(bool(a.required) for a in needed)])
