"""What a user sees of a training without having configured anything."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import detslurm as det
from detslurm import pytorch
from detslurm.core._console_log import show_log
from detslurm.pytorch import Batch
from tests.pytorch.fitting import fit, in_job
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression

OURS = logging.getLogger("detslurm")


@pytest.fixture
def unconfigure(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Puts pytest's own handlers aside: as in a program that configures no logging."""
    level = OURS.level

    def put_aside() -> None:
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        monkeypatch.setattr(OURS, "handlers", [])
        OURS.setLevel(logging.NOTSET)

    yield put_aside
    OURS.setLevel(level)


def test_losses_checkpoints_and_the_way_to_more(
    root: Path, unconfigure: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every report, validation and checkpoint is a line on stderr; stdout is the program's."""
    unconfigure()
    fit(max_length=Batch(20), reporting_period=Batch(10), validation_period=Batch(20))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and all(line.startswith("detslurm: ") for line in lines)
    assert "`detslurm trial describe 1`" in lines[0]
    assert "report every Batch(10); validate every Batch(20)" in lines[1]
    assert "save at the end and after every validation" in lines[1]
    assert lines[2] == "detslurm: an epoch is 12 batches"
    assert lines[3].startswith("detslurm: batch 10 of 20 (epoch 0.8): loss ")
    assert "batches/s" in lines[3]
    assert lines[5].startswith("detslurm: validation after batch 20: loss ")
    assert lines[6].startswith("detslurm: saved checkpoint ") and len(lines) == 7


def test_a_run_that_goes_on_says_from_where(
    managed: Managed, unconfigure: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    """And one that leaves says so."""
    unconfigure()
    in_job(managed, checkpoint_period=Batch([8]), checkpoint_policy="none")
    capfd.readouterr()
    managed.config["searcher"]["max_length"] = {"batches": 30}
    with managed.run() as flag:
        flag.request_preemption()
        info = det.get_cluster_info()
        assert info is not None
        latest = info.latest_checkpoint
        with pytorch.init() as context:
            pytorch.Trainer(Regression(context), context).fit(latest_checkpoint=latest)
    err = capfd.readouterr().err
    assert f"an epoch is 12 batches; 20 are trained, by {latest}" in err
    assert "leaving after batch 20, asked from outside" in err


def test_a_program_that_logs_decides_itself(
    root: Path, unconfigure: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it configures logging before or after: no line comes twice."""
    unconfigure()
    show_log()
    OURS.info("one")
    mine = logging.NullHandler()
    logging.getLogger().addHandler(mine)
    OURS.info("two")
    assert capsys.readouterr().err == "detslurm: one\n"
    before = list(OURS.handlers)
    show_log()
    assert OURS.handlers == before


def test_a_logger_that_was_configured_is_left_alone(unconfigure: Callable[[], None]) -> None:
    """Its level is a wish."""
    unconfigure()
    OURS.setLevel(logging.ERROR)
    show_log()
    assert OURS.handlers == []
