"""The recorder beside a script: one writer, whatever dies or comes between."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from detslurm import core
from detslurm.config.run_config import RunConfig
from detslurm.core import _software
from detslurm.core._software import note_software
from detslurm.record import recorder
from detslurm.store import TrialDir, provenance
from tests.cluster.waiting import wait_for
from tests.record.agents import running

PATIENCE = 120
TRACKER = """\
    import os, pathlib, sys, time

    here = pathlib.Path(os.environ["HERE"])

    def wait(name):
        (here / f"at-{name}").touch()
        while not (here / name).exists():
            time.sleep(0.02)

    pathlib.Path("tensorboardX").mkdir()
    pathlib.Path("tensorboardX/__init__.py").touch()
    pathlib.Path("tensorboardX/writer.py").write_text(
        "class SummaryWriter:\\n"
        "    def add_scalar(self, tag, value, step=None): pass\\n"
        "    def add_scalars(self, *args): pass\\n"
    )
    from tensorboardX.writer import SummaryWriter
    writer = SummaryWriter()
"""
RECORD = {"record": ["tensorboard"], "metrics_from_log": [{"pattern": r"acc=(?P<acc>\S+)"}]}


def test_code_that_calls_core_init_takes_over(tmp_path: Path) -> None:
    """Earlier records stay; from then on its own reports count, and the log names it."""
    script = (
        TRACKER
        + """\
    import detslurm as det

    writer.add_scalar("loss", 3.0, 1)
    with det.core.init() as core:
        writer.add_scalar("loss", 2.0, 2)
        core.train.report_training_metrics(2, {"own": 1.0})
    """
    )
    with running(tmp_path, script, RECORD) as run:
        ended = run.end()
    assert ended.reports["ended"]["exit_code"] == 0, ended.log
    assert ended.metrics("training") == [(1, {"loss": 3.0}), (2, {"own": 1.0})]
    assert "record: the script calls core.init() itself" in ended.log


def test_a_killed_recorder_ends_no_run(tmp_path: Path) -> None:
    """Its flushed values are there, and the log names its end; the script goes on."""
    script = (
        TRACKER
        + """\
    writer.add_scalar("val/loss", 3.0, 1)
    wait("killed")
    for step in range(20_000):
        writer.add_scalar("val/loss", 2.0, 2 + step)
        print("acc=0.5")
    """
    )
    with running(tmp_path, script, RECORD) as run:
        wait_for(lambda: run.metrics("validation"), PATIENCE, "the first value in the store")
        os.kill(run.recorder(), signal.SIGKILL)
        wait_for(lambda: not run.recorder(), PATIENCE, "its end")
        (tmp_path / "killed").touch()
        ended = run.end()
    assert ended.reports["ended"]["exit_code"] == 0
    assert "the recorder ended with status -9" in ended.log
    assert ended.metrics("validation") == [(1, {"val/loss": 3.0})]
    assert not list((tmp_path / "tmp").iterdir())


def test_the_last_values_are_recorded_at_a_preemption(tmp_path: Path) -> None:
    """Also if the store was not flushed yet, and whatever signal comes to all processes."""
    script = (
        TRACKER
        + """\
    for step in range(1, 5001):
        writer.add_scalar("loss", 1.0, step)
        print(f"acc={step}", flush=True)
    wait("never")
    """
    )
    with running(tmp_path, script, RECORD) as run:
        wait_for((tmp_path / "at-never").exists, PATIENCE, "the script")
        for pid in (run.recorder(), run.process.pid, *run.code()):
            os.kill(pid, signal.SIGTERM)
        ended = run.end()
    assert ended.reports["ended"]["preempted"]
    assert [step for step, _ in ended.metrics("training")][-1] == 5000
    assert ended.metrics("validation")[-1] == (5000, {"acc": 5000.0})


def test_a_pattern_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    """The other pattern and the script go on."""
    patterns = [
        {"pattern": r"x(?P<slow>(a+)+)$"},
        {"group": "training", "pattern": r"acc=(?P<acc>\S+)"},
    ]
    script = """\
    print("x" + "a" * 40 + "b", flush=True)
    print("acc=0.5")
    """
    with running(tmp_path, script, {"metrics_from_log": patterns}) as run:
        ended = run.end()
    assert "metrics_from_log[0] is no longer looked for" in ended.log
    assert ended.metrics("training") == [(1, {"acc": 0.5})]


def test_its_packages_are_not_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script may run in a Python of its own, which the submission has recorded."""
    monkeypatch.setattr(_software, "runs_code", True)
    monkeypatch.setattr(core, "init", lambda **_: MagicMock())
    kept: list[object] = []
    monkeypatch.setattr(provenance, "note_software", lambda *args: kept.append(args))
    trial = TrialDir(Path("/store/experiments/1/trials/0/1"), 1, 1)
    note_software(trial, 1)
    assert len(kept) == 1
    recorder.RunReports(RunConfig())._begun()
    note_software(trial, 1)
    assert len(kept) == 1


def test_a_slow_store_blocks_no_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are read while nothing is reported; those beyond a limit are dropped and counted."""
    monkeypatch.setattr(recorder, "_MOST_LINES", 2)
    reader, writer = os.pipe()
    channel = recorder.Channel(reader)
    os.write(writer, b"1\n2\n3\n4\n")
    wait_for(lambda: channel.dropped == 2, PATIENCE, "two lines too many")
    lines = channel.lines()
    assert [next(lines) for _ in range(3)] == [b"1", b"2", None]
    os.write(writer, b"5\nhalf a li")
    os.close(writer)
    assert [line for line in lines if line is not None] == [b"5"]
    os.close(reader)
