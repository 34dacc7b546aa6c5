"""Errors of the store while code trains: they pass, and nothing that was reported is lost."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from detslurm.core import _recorder
from detslurm.core._recorder import Recorder
from detslurm.store import StoreFault, read_records, retry
from tests.cluster.waiting import wait_for
from tests.store.faults import failing


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """One that writes every moment, and does not wait between two tries."""
    monkeypatch.setattr(_recorder, "_FLUSH_EVERY", 0.01)
    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=lambda seconds: None))
    return Recorder.of(tmp_path / "log")


def numbers(tmp_path: Path) -> list[int]:
    return [record["n"] for record in read_records(tmp_path / "log").records]


def test_an_error_in_the_background_is_tried_again(tmp_path: Path, recorder: Recorder) -> None:
    """Nobody has to report again for that, and no report raises or is dropped meanwhile."""
    with failing("pwrite", errno.EIO, times=3) as write:
        recorder.record({"n": 1})
        wait_for(lambda: write.call_count >= 2, 120, "a second try")
        recorder.record({"n": 2})
        wait_for(lambda: numbers(tmp_path) == [1, 2], 120, "both records")
    recorder.close()
    assert numbers(tmp_path) == [1, 2]


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_commit_outlives_a_hiccup(tmp_path: Path, recorder: Recorder, call: str) -> None:
    """It is written once; only an error that stays is raised, and then the record is kept."""
    with failing(call, errno.EIO, times=2):
        recorder.commit({"n": 1})
    assert numbers(tmp_path) == [1]
    with failing(call, errno.EIO, times=1000), pytest.raises(StoreFault):
        recorder.commit({"n": 2})
    with failing(call, errno.EIO):
        recorder.close()
    assert numbers(tmp_path) == [1, 2]
