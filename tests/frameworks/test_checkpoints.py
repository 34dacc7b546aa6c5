"""The checkpoint that a framework goes on from, where it has to be copied."""

from __future__ import annotations

import contextlib
import logging
from types import SimpleNamespace

import pytest

from detslurm import core
from detslurm.frameworks import checkpoints
from detslurm.frameworks.checkpoints import FrameworkCheckpoints
from detslurm.storage import SharedFS
from tests.core.jobs import Job, job, own_signals

__all__ = ["job", "own_signals"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_copy_that_no_training_ends_goes_with_the_context(
    job: Job, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """After a validation alone, or an error before training has begun."""
    monkeypatch.setattr(SharedFS, "direct", lambda *of: None)  # as of a bucket
    error = pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext()
    with error, core.init() as context:
        with context.checkpoint.store_path({"steps_completed": 4}) as (path, uuid):
            (path / "weights").write_text("12345")
        trial = SimpleNamespace(
            trial_id=1, _steps_completed=4, _hparams_changed=False, continues=None
        )
        info = SimpleNamespace(latest_checkpoint=uuid, trial=trial)
        monkeypatch.setattr(checkpoints, "get_cluster_info", lambda: info)
        held = FrameworkCheckpoints(context, None, logging.getLogger())
        resumed = held.resumed
        assert resumed is not None and (resumed / "weights").read_text() == "12345"
        assert 1 / (not fails)
    assert not resumed.exists()
