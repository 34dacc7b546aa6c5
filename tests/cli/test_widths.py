"""Every list fits a terminal of 80 columns: no line is wrapped, whatever is in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from detslurm.cli.output.tables import cells_of
from detslurm.slurm import JobInfo, NodeInfo
from detslurm.slurm.queue_state import ref_of
from tests.cli.conftest import Detslurm
from tests.cli.test_bad_inputs import leaves
from tests.sdk.scenes import Scene

LONG = "a name that is long, as names of experiments are, with 日本語 in it " * 2
WORDS = {"experiment_id": "1", "trial_id": "1", "name": "vision", "workspace": "vision"}
WORDS |= {"project_name": "digits"}


def lists() -> Iterator[tuple[str, list[str]]]:
    """The commands that print tables, each with words that it takes."""
    for path, command in leaves():
        if any("--table" in p.opts for p in command.params):
            arguments = [p for p in command.params if isinstance(p, click.Argument) and p.required]
            yield path, [WORDS.get(str(a.name), "1") for a in arguments]


LISTS = dict(lists())
NEEDS_MORE = {"model list-versions", "checkpoint verify"}  # have tests of their own


@pytest.fixture
def full(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """An experiment with long names and much to show; stdout is taken for a terminal."""
    about = {"workspace": "vision", "project": "digits", "labels": [LONG], "owner": "a" * 32}
    experiment = scene.experiment(3, name=LONG, about={**about, "pool": "partition" * 3})
    uuid = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
    scene.run(
        experiment, 0, losses=[1 / 3, 1 / 7], checkpoint=uuid, ref="7_0", end="completed",
        log=["line"],
    )  # fmt: skip
    scene.run(experiment, 1, losses=[123456.789], ref="7_1", end="error", reason=LONG)
    given: dict[str, Any] = {"user": "u" * 32, "partitions": ("partition" * 3,), "name": LONG}
    scene.queue.rows = [
        JobInfo(ref="12345678", state="RUNNING", nodes=("n1",), gpus=40_000, **given),
        JobInfo(ref=ref_of("12345678", range(0, 99, 7)), state="PENDING", reason=LONG, **given),
    ]
    scene.queue.machines = [
        NodeInfo(
            name=f"node{n:030}", state="MIXED+DRAIN+PLANNED", partitions=given["partitions"],
            gpus=8, gpus_used=3, gpu_types=("nvidia_h100_80gb_hbm3",), reason=LONG,
        )
        for n in range(2)
    ]  # fmt: skip
    for module in ("tables", "printing"):
        monkeypatch.setattr(f"detslurm.cli.output.{module}.on_terminal", lambda: True)
    monkeypatch.setenv("LINES", "1000")
    return scene


def test_there_are_lists() -> None:
    """The test finds them by their option."""
    assert {"experiment list", "experiment list-trials", "workspace list"} <= LISTS.keys()
    assert len(LISTS) >= 12


@pytest.mark.parametrize("path", sorted(LISTS.keys() - NEEDS_MORE))
def test_no_line_is_wrapped(
    full: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str
) -> None:
    """At 80 columns, and at 60."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for columns in (80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        result = detslurm(*path.split(), *LISTS[path])
        assert result.status == 0, result.err
        long = [line for line in result.out.splitlines() if cells_of(line) > columns]
        assert not long, long


def test_what_is_described_fits_too(
    full: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs of a trial, however long their reasons are, and the policy in a line."""
    for columns in (80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        runs = detslurm("t", "describe", 2).out.partition("Runs:\n")[2].partition("\n\n")[0]
        assert "failed" in runs and "Outcome" in runs
        lines = runs.splitlines()
        assert len(lines) == 3 and max(map(cells_of, lines)) <= columns
    policies = {(0, 1, 1): "the best and the latest of each trial", (0, 0, 0): "none"}
    policies[2, 1, 3] = "the best and the 3 latest of each trial; the 2 best of all trials"
    names = ("save_experiment_best", "save_trial_best", "save_trial_latest")
    for numbers, text in policies.items():
        full.set_policy(full.store.experiment(1), dict(zip(names, numbers, strict=True)))
        out = detslurm("e", "describe", 1).out
        assert f"Checkpoints kept : {text}\n" in out


def test_hyperparameters_that_differ_are_whole(
    full: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stand before the constants, which alone are cut at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    experiment = full.experiment(2, job=None)
    for index, lr in enumerate((0.00123456, 0.0654321)):
        hparams = {
            "batch": 64,
            "name": LONG,
            "model": {"depth": 2 + index, "kind": "cnn"},
            "lr": lr,
        }
        full.run(experiment, index, losses=[1 / 7], end="completed", hparams=hparams)
    for words in (("e", "describe", 2), ("e", "list-trials", 2)):
        out = detslurm(*words).out
        assert "model.depth=2, lr=0.00123456" in out and "model.depth=3, lr=0.0654321" in out
        assert "kind=cnn" not in out
    monkeypatch.setenv("COLUMNS", "400")
    assert "lr=0.0654321, batch=64, name=a name" in detslurm("e", "describe", 2).out


def test_a_metric_keeps_its_exponent(
    full: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A score that is cut would be another one."""
    monkeypatch.setenv("COLUMNS", "80")
    full.run(full.store.experiment(1), 2, losses=[6.59986e-18], ref="7_2", end="completed")
    assert "6.59986e-18" in detslurm("e", "list-trials", 1).out
    assert "6.59986e-18 @" in detslurm("e", "describe", 1).out
